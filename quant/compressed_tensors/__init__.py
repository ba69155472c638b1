"""compressed-tensors: low-bit integers and floats, as llm-compressor writes them for vLLM."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Quantizer, TensorInfo, hookimpl

METHOD = "compressed-tensors"


def claims(tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any]) -> bool:
    """All weights of such a model that are not one plain tensor."""
    return settings.get("quant_method") == METHOD and tensors.keys() != {"weight"}


@hookimpl
def ostro_quantizers() -> Iterable[Quantizer]:
    yield Quantizer(
        name="compressed_tensors", claims=claims, storage=f"{__name__}.storage:Compressed"
    )
