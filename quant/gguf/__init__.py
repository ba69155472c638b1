"""The ggml formats: blocks of a row that share a scale, as GGUF files hold them."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro.core.hooks import hookimpl
from ostro.core.records import Quantizer, TensorInfo

FORMATS = frozenset({"Q8_0"})
"""The block formats that `naive` unpacks; plain floats are `quant.dense`'s."""


def claims(tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any]) -> bool:
    return tensors.keys() == {"weight"} and tensors["weight"].format in FORMATS


@hookimpl
def ostro_quantizers() -> Iterable[Quantizer]:
    yield Quantizer(name="gguf", claims=claims, storage=f"{__name__}.storage:Packed")
