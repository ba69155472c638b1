"""compressed-tensors: integers and floats of few bits, as llm-compressor writes them for vLLM."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Quantizer, TensorInfo, hookimpl

METHOD = "compressed-tensors"


def claims(tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any]) -> bool:
    """All that such a model does not hold as one plain tensor."""
    return settings.get("quant_method") == METHOD and tensors.keys() != {"weight"}


@hookimpl
def ostro_quantizers() -> Iterable[Quantizer]:
    yield Quantizer(
        name="compressed_tensors", claims=claims, storage=f"{__name__}.storage:Compressed"
    )
