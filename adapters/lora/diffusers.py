"""Read LoRA files with diffusers' names of weights.

Names are `transformer.transformer_blocks.0.attn.to_q.lora_A.weight` and `.lora_B.weight`, in older
files `lora.down` and `lora.up`. The scale is that of the component's LoraConfig in the header's
`lora_adapter_metadata` ("transformer.r", ...), else alpha / r if the factors have an `.alpha`,
else 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ostro import AdapterWeights, Container, LowRank, errors
from ostro.adapters.lora.config import Settings
from ostro.adapters.lora.kohya import alpha
from ostro.adapters.lora.tensors import by_module, finite, low_rank

FILE = "pytorch_lora_weights.safetensors"
METADATA = "lora_adapter_metadata"
PARTS = ("transformer", "unet", "text_encoder", "text_encoder_2", "text_encoder_3")

A = ("lora_A.weight", "lora.down.weight", "lora_linear_layer.down.weight")
B = ("lora_B.weight", "lora.up.weight", "lora_linear_layer.up.weight")
OTHERS = {"lora_B.bias": "bias", "lora_magnitude_vector": "magnitude", "alpha": "alpha"}
ENDS = dict.fromkeys(A, "a") | dict.fromkeys(B, "b") | OTHERS
FACTOR = re.compile(
    rf"(?P<module>(?:{'|'.join(PARTS)})\..+?)\.(?P<end>{'|'.join(map(re.escape, ENDS))})"
)


def read(file: str, container: Container) -> AdapterWeights:
    """Read a diffusers file. Raises AdapterError with the tensor, or the metadata key."""
    modules = by_module(
        file,
        container.tensors,
        FACTOR,
        ENDS,
        f"no factor of a weight in {', '.join(PARTS)}: known are names that end in "
        f"{', '.join(ENDS)}; save the adapter with diffusers",
    )
    if not modules:
        raise errors.AdapterError(f"{file}: holds no LoRA tensor")
    sizes = _sizes(file, container, modules)
    weights = {
        module: _module(file, container, module, parts, sizes.get(module))
        for module, parts in modules.items()
    }
    return AdapterWeights(kind="lora", weights=weights, config={"format": "diffusers"})


def _module(
    file: str,
    container: Container,
    module: str,
    parts: Mapping[str, str],
    size: tuple[int, float] | None,
) -> LowRank:
    tensors = {part: finite(file, container, parts[part]) for part in parts.keys() - {"alpha"}}
    rank, scale = size or (None, 1.0)
    if "alpha" in parts:
        if size is not None:
            raise errors.AdapterError(
                f"{file}: both {parts['alpha']!r} and {METADATA} set a scale of {module}; keep one"
            )
        scale = alpha(file, container, parts["alpha"]) / tensors["a"].shape[0]
    return low_rank(
        file,
        module,
        tensors["a"],
        tensors["b"],
        scale,
        rank=rank,
        bias=tensors.get("bias"),
        magnitude=tensors["magnitude"].flatten() if "magnitude" in tensors else None,
    )


def _sizes(
    file: str, container: Container, modules: Mapping[str, Any]
) -> dict[str, tuple[int, float]]:
    """Ranks and scales of the modules in the file's metadata."""
    metadata = _metadata(file, container)
    found: dict[str, tuple[int, float]] = {}
    for part in PARTS:
        config = {
            k.removeprefix(f"{part}."): v for k, v in metadata.items() if k.startswith(f"{part}.")
        }
        if not config:
            continue
        # PEFT's patterns do not contain the names of pipeline components
        names = [name.removeprefix(f"{part}.") for name in modules if name.startswith(f"{part}.")]
        sizes = Settings.of(config, f"{file}: {METADATA}: {part}").sizes(names)
        found |= {f"{part}.{name}": size for name, size in sizes.items()}
    return found


def _metadata(file: str, container: Container) -> Mapping[str, Any]:
    text = container.metadata.get(METADATA)
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, Mapping):
        raise errors.AdapterError(f"{file}: {METADATA} is not a JSON object")
    return found
