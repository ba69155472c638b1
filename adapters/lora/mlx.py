"""Read LoRA and DoRA folders of mlx-lm: adapters.safetensors, and mlx-lm's config.

`lora_a` and `lora_b` of a linear are [k, r] and [r, n], of an embedding [n, r] and [r, k], of
stacked experts [e, r, k] and [e, n, r]; `m` [n] is the magnitude vector of DoRA. `scale` is the
full factor and is not divided by the rank. Stacked experts (`switch_mlp.gate_proj`) are split into
single ones (`experts.0.gate_proj`), as in Hugging Face checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from ostro import AdapterSource, AdapterWeights, LowRank, errors
from ostro.adapters.lora import folder
from ostro.adapters.lora.tensors import by_module, finite, low_rank, number, positive, stacked

FILE = "adapters.safetensors"
CONFIG = "adapter_config.json"
FACTOR = re.compile(r"(?P<module>.+)\.(?P<end>lora_a|lora_b|m)")
PARTS = {"lora_a": "a", "lora_b": "b", "m": "m"}

TABLES = ("embed_tokens", "wte", "word_embeddings", "tok_embeddings")
"""The names of embeddings."""

STACK = re.compile(r"(?P<front>(?:.*\.)?(?P<block>[^.]+))\.switch_mlp\.(?P<name>[^.]+)")
MIXTRAL = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
"""The names of an expert's matrices in Mixtral's `block_sparse_moe`."""


def read(source: AdapterSource) -> AdapterWeights:
    """Read an mlx-lm folder. Raises AdapterError with the config key or the tensor."""
    kind = source.config.get("fine_tune_type", "lora")
    if kind not in ("lora", "dora"):
        raise errors.AdapterError(
            f"{CONFIG}: fine_tune_type={kind!r:.80} is not supported, expected lora or dora; fuse "
            "the adapter with mlx_lm.fuse, and serve the fused model"
        )
    if FILE not in source.files.names:
        folder.refuse_pickles(source)
        raise errors.AdapterError(f"{source.files.root.name}: there is no {FILE} in it")
    rank, scale = _parameters(source.config.get("lora_parameters"))
    weights: dict[str, LowRank] = {}
    container, known = source.open(FILE), "no lora_a, lora_b or m of a module"
    modules = by_module(FILE, container.tensors, FACTOR, PARTS, known)
    for module, names in modules.items():
        parts = {part: finite(FILE, container, name) for part, name in names.items()}
        weights |= _module(module, parts, rank, scale, kind == "dora")
    if not weights:
        raise errors.AdapterError(f"{FILE}: holds no LoRA tensor")
    base = source.config.get("model")
    return AdapterWeights(
        kind="lora",
        weights=weights,
        template=folder.template(source),
        config={"r": rank, "scale": scale, "use_dora": kind == "dora"},
        base=base if isinstance(base, str) else "",
    )


def _parameters(parameters: Any) -> tuple[int, float]:
    """Rank and scale, both required. Raises AdapterError."""
    if not isinstance(parameters, Mapping):
        raise errors.AdapterError(
            f"{CONFIG}: lora_parameters must be an object, not {parameters!r:.80}"
        )
    rank = positive(CONFIG, "lora_parameters.rank", parameters.get("rank"))
    return rank, number(CONFIG, "lora_parameters.scale", parameters.get("scale"))


def _module(
    module: str, parts: Mapping[str, Tensor], rank: int, scale: float, dora: bool
) -> dict[str, LowRank]:
    if ("m" in parts) != dora:
        raise errors.AdapterError(
            f"{FILE}: module {module} has {'an' if 'm' in parts else 'no'} m, which is not what "
            f"fine_tune_type={'dora' if dora else 'lora'} has"
        )
    a, b, lengths = parts["a"], parts["b"], parts.get("m")
    if a.dim() == 3:
        return dict(_experts(module, stacked(FILE, module, a, b, scale, rank), lengths))
    if module.rpartition(".")[2] in TABLES:
        a, b = b.mT, a.mT
    return {module: low_rank(FILE, module, a.mT, b.mT, scale, rank=rank, magnitude=lengths)}


def _experts(module: str, stack: LowRank, lengths: Tensor | None) -> Iterator[tuple[str, LowRank]]:
    match = STACK.fullmatch(module)
    if match is None or lengths is not None:
        raise errors.AdapterError(
            f"{FILE}: module {module} has experts that are not read: lora of a switch_mlp is, "
            "dora is not"
        )
    name = match["name"]
    name = MIXTRAL.get(name, name) if match["block"] == "block_sparse_moe" else name
    for number_, (a, b) in enumerate(zip(stack.a, stack.b, strict=True)):
        yield f"{match['front']}.experts.{number_}.{name}", LowRank(a=a, b=b, scale=stack.scale)
