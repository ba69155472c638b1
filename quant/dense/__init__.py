"""Dense: unquantized float weights, packed once for the device's matmul."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Quantizer, TensorInfo, hookimpl

FORMATS = frozenset({"F64", "F32", "F16", "BF16"})


def claims(tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any]) -> bool:
    return tensors.keys() == {"weight"} and tensors["weight"].format in FORMATS


@hookimpl
def ostro_quantizers() -> Iterable[Quantizer]:
    yield Quantizer(name="dense", claims=claims, storage=f"{__name__}.storage:Dense")
