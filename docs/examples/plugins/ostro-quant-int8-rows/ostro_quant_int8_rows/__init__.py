"""Int8 weights with one scale per row."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Format, Quantizer, TensorInfo, hookimpl

NAME = "int8-rows"


def claims(tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any]) -> bool:
    if settings.get("quant_method") != NAME or tensors.keys() != {"weight", "scale"}:
        return False
    weight, scale = tensors["weight"], tensors["scale"]
    return weight.format == "I8" and scale.shape == weight.shape[:-1]


@hookimpl
def ostro_quantizers() -> Iterable[Quantizer]:
    yield Quantizer(
        name=NAME,
        claims=claims,
        storage=f"{__name__}.storage:Int8Rows",
        makes=(Format(name=NAME, bits=8),),
    )
