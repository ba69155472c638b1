"""AWQ: AutoAWQ's codes of 4 bits with one scale and zero per group (Lin et al., 2024)."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Quantizer, TensorInfo, hookimpl


def claims(tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any]) -> bool:
    """All quantized weights of an AWQ model; `read` rejects unsupported versions."""
    return settings.get("quant_method") == "awq" and "qweight" in tensors


@hookimpl
def ostro_quantizers() -> Iterable[Quantizer]:
    yield Quantizer(name="awq", claims=claims, storage=f"{__name__}.storage:Awq")
