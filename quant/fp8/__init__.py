"""FP8: float8 weights with one scale per tensor, per row, or per block."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Format, Quantizer, TensorInfo, hookimpl

FORMATS = frozenset({"F8_E4M3", "F8_E5M2"})
SCALES = frozenset({"weight_scale", "weight_scale_inv"})
"""Names of the scale tensor; values are multiplied by it in both cases."""

UNUSED = frozenset({"input_scale", "activation_scale"})
"""Scales of activations, which are not quantized to FP8 here."""

UQFF = frozenset(
    {"weight", *(f"weight.{part}" for part in ("format", "dtype", "quant_scale"))}
    | {"weight.dequant_w_scale", "weight.dequant_x_scale"}
)


def claims(tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any]) -> bool:
    """Float8 weights with one scale tensor, except those of compressed-tensors."""
    if "weight" not in tensors or tensors["weight"].format not in FORMATS:
        return False
    if settings.get("quant_method") == "compressed-tensors":
        return False
    rest = tensors.keys() - UNUSED - {"weight"}
    return tensors.keys() == UQFF or (len(rest) == 1 and rest <= SCALES)


@hookimpl
def ostro_quantizers() -> Iterable[Quantizer]:
    yield Quantizer(
        name="fp8",
        claims=claims,
        storage=f"{__name__}.storage:Fp8",
        makes=(Format(name="fp8", bits=8, block=32),),
    )
