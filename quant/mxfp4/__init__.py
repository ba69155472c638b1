"""MXFP4: four-bit floats with one power-of-two scale per 32 weights (OCP Microscaling, 2023)."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Format, Quantizer, TensorInfo, hookimpl

HUB = {"blocks": "U8", "scales": "U8"}
GGUF = {"weight": "MXFP4"}
MLX = {"weight": "U32", "scales": "U8"}
UQFF = {"weight": "U8", "weight.scales": "U8", "weight.format": "U8"}


def claims(tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any]) -> bool:
    """The tensors of gpt-oss on the hub, of MLX, and of GGUF and UQFF files."""
    return {suffix: info.format for suffix, info in tensors.items()} in (HUB, GGUF, MLX, UQFF)


@hookimpl
def ostro_quantizers() -> Iterable[Quantizer]:
    yield Quantizer(
        name="mxfp4",
        claims=claims,
        storage=f"{__name__}.storage:Mxfp4",
        makes=(Format(name="mxfp4", bits=4.25, block=32),),
    )
