"""compressed-tensors: low-bit integers and floats, the format of llm-compressor and vLLM."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Quantizer, TensorInfo, hookimpl

METHOD = "compressed-tensors"


def claims(tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any]) -> bool:
    """All weights of a compressed-tensors model, except plain float tensors."""
    return settings.get("quant_method") == METHOD and tensors.keys() != {"weight"}


@hookimpl
def ostro_quantizers() -> Iterable[Quantizer]:
    yield Quantizer(
        name="compressed_tensors", claims=claims, storage=f"{__name__}.storage:Compressed"
    )
