"""GPTQ: codes of 2 to 8 bits with one scale and zero per group (Frantar et al., 2023)."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro import Quantizer, TensorInfo, hookimpl

NEEDED = ("qweight", "qzeros", "scales")
INDEX = "g_idx"
MARLIN = "B"
"""The name of a Marlin weight in AutoGPTQ checkpoints, a format that is not supported."""


def claims(tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any]) -> bool:
    """All quantized weights of a GPTQ model; without a config, weights with all its tensors."""
    method = settings.get("quant_method")
    if method is None:
        return {*NEEDED, INDEX} <= tensors.keys()
    return method == "gptq" and ("qweight" in tensors or MARLIN in tensors)


@hookimpl
def ostro_quantizers() -> Iterable[Quantizer]:
    yield Quantizer(name="gptq", claims=claims, storage=f"{__name__}.storage:Gptq")
