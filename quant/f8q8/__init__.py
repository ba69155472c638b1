"""F8Q8: mistral.rs's blocks of 32 int8 with one float8 scale."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Format, Quantizer, TensorInfo, hookimpl

UQFF = frozenset({"weight", "weight.format", "weight.num_blocks", "weight.shape"})


def claims(tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any]) -> bool:
    """The tensors in UQFF files of mistral.rs; no other container has them."""
    return tensors.keys() == UQFF and tensors["weight"].format == "U8"


@hookimpl
def ostro_quantizers() -> Iterable[Quantizer]:
    yield Quantizer(
        name="f8q8",
        claims=claims,
        storage=f"{__name__}.storage:F8Q8",
        makes=(Format(name="f8q8", bits=9, block=32),),
    )
