"""AFQ: MLX's affine formats, codes of 2 to 8 bits with one scale and bias per group."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Format, Quantizer, TensorInfo, hookimpl

MLX = frozenset({"weight", "scales", "biases"})
UQFF = frozenset(
    {"weight", *(f"weight.{part}" for part in ("format", "scales", "biases", "bits", "group_size"))}
)
GROUP = 64
"""Columns per scale when a float weight is quantized."""

SENSITIVE = {2: "afq6", 3: "afq6", 4: "afq6", 6: "afq8", 8: "afq8"}


def claims(tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any]) -> bool:
    """The tensors of MLX, and of mistral.rs in UQFF files; the shapes determine the bits."""
    return tensors.keys() in (MLX, UQFF) and tensors["weight"].format == "U32"


@hookimpl
def ostro_quantizers() -> Iterable[Quantizer]:
    yield Quantizer(
        name="afq",
        claims=claims,
        storage=f"{__name__}.storage:Afq",
        makes=tuple(
            Format(name=f"afq{bits}", bits=bits + 32 / GROUP, block=GROUP, sensitive=sensitive)
            for bits, sensitive in SENSITIVE.items()
        ),
    )
