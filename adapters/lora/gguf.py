"""Read GGUF adapters, in the format of llama.cpp's convert_lora_to_gguf.py.

Each weight name has the suffixes `.lora_a` [r, k] and `.lora_b` [n, r]; stacked experts
[e, r, k] and [e, n, r]. For token_embd, n tokens by k, `.lora_a` is [n, r] and `.lora_b` [k, r].
The scale is alpha / r, or 1 if alpha is 0. The metadata of an activated LoRA has its invocation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ostro import AdapterWeights, Container, LowRank, errors
from ostro.adapters.lora.tensors import by_module, finite, low_rank, number, stacked

FACTOR = re.compile(r"(?P<module>.+)\.weight\.(?P<end>lora_[ab])")
PARTS = {"lora_a": "a", "lora_b": "b"}
ALPHA = "adapter.lora.alpha"
INVOCATION = "adapter.alora.invocation_tokens"


def read(file: str, container: Container) -> AdapterWeights:
    """Read a GGUF adapter. Raises AdapterError with the metadata key or the tensor."""
    metadata = container.metadata
    for key, expected in (("general.type", "adapter"), ("adapter.type", "lora")):
        if metadata.get(key) != expected:
            raise errors.AdapterError(
                f"{file}: {key} is {metadata.get(key)!r:.80}, expected {expected!r}"
            )
    alpha = number(file, ALPHA, metadata.get(ALPHA))
    modules = by_module(
        file,
        container.tensors,
        FACTOR,
        PARTS,
        "no lora_a or lora_b of a weight; whole tensors in an adapter are not read: leave it out "
        "when it is converted",
    )
    weights = {
        module: _module(file, container, module, parts, alpha) for module, parts in modules.items()
    }
    if not weights:
        raise errors.AdapterError(f"{file}: holds no LoRA tensor")
    base = metadata.get("general.base_model.0.name")
    return AdapterWeights(
        kind="lora",
        weights=weights,
        space="gguf",
        invocation=_invocation(file, metadata.get(INVOCATION)),
        config={"lora_alpha": alpha, "architecture": str(metadata.get("general.architecture", ""))},
        base=base if isinstance(base, str) else "",
    )


def _module(
    file: str, container: Container, module: str, parts: Mapping[str, str], alpha: float
) -> LowRank:
    a, b = (finite(file, container, parts[part]) for part in "ab")
    scale = alpha / b.shape[-1] if alpha and b.dim() else 1.0
    if a.dim() == 3:
        return stacked(file, module, a, b, scale)
    if module == "token_embd":
        a, b = b.mT, a
    return low_rank(file, module, a, b, scale)


def _invocation(file: str, value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    try:
        return tuple(int(token) for token in value)
    except (TypeError, ValueError):
        raise errors.AdapterError(
            f"{file}: {INVOCATION} must be a list of tokens, not {value!r:.80}"
        ) from None
