"""The ggml formats: blocks of a row that share a scale, as GGUF files hold them."""

from collections.abc import Iterable, Mapping
from typing import Any

from ostro.core.hooks import hookimpl
from ostro.core.records import Quantizer, TensorInfo

FORMATS = frozenset(
    "Q1_0 Q2_0 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ1_S IQ1_M IQ2_XXS "
    "IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0 NVFP4".split()
)
"""The block formats that are read here; plain floats are `quant.dense`'s, MXFP4 `quant.mxfp4`'s."""


def claims(tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any]) -> bool:
    return tensors.keys() == {"weight"} and tensors["weight"].format in FORMATS


@hookimpl
def ostro_quantizers() -> Iterable[Quantizer]:
    yield Quantizer(name="gguf", claims=claims, storage=f"{__name__}.storage:Blocks")
