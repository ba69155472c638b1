"""The ggml formats of GGUF files: blocks of weights with shared scales."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from ostro import Format, Planner, Quantizer, TensorInfo, hookimpl

FORMATS = frozenset(
    "Q1_0 Q2_0 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ1_S IQ1_M IQ2_XXS "
    "IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0 NVFP4".split()
)
"""The block formats of this plugin; `quant.dense` reads floats, `quant.mxfp4` reads MXFP4."""


K = partial(Format, block=256, importance=True)
SMALL = partial(Format, block=32, importance=True)
MAKES = (
    SMALL(name="q4_0", bits=4.5, sensitive="q6k"),
    SMALL(name="q4_1", bits=5, sensitive="q6k"),
    SMALL(name="q5_0", bits=5.5, sensitive="q8_0"),
    SMALL(name="q5_1", bits=6, sensitive="q8_0"),
    SMALL(name="q8_0", bits=8.5, sensitive="q8_0"),
    SMALL(name="q8_1", bits=9, sensitive="q8_0"),
    K(name="q2k", bits=2.625, instead="q4_0", sensitive="q6k"),
    K(name="q3k", bits=3.4375, instead="q4_0", sensitive="q6k"),
    K(name="q4k", bits=4.5, instead="q4_1", sensitive="q6k"),
    K(name="q5k", bits=5.5, instead="q5_0", sensitive="q8_0"),
    K(name="q6k", bits=6.5625, instead="q5_1", sensitive="q8_0"),
    K(name="q8k", bits=9.125, instead="q8_1", sensitive="q8_0"),
    SMALL(name="iq4_nl", bits=4.5, sensitive="q6k"),
    K(name="iq4_xs", bits=4.25, instead="iq4_nl", sensitive="q6k"),
    K(name="tq1_0", bits=1.6875, instead="q4_0", sensitive="q6k"),
    K(name="tq2_0", bits=2.0625, instead="q4_0", sensitive="q6k"),
)
"""Formats for quantization; `instead` and `sensitive` are those of mistral.rs if it has them."""


MIXTURES: Mapping[str, str] = {
    "Q3_K_S": "Q3_K",
    "Q3_K_M": "Q3_K",
    "Q3_K_L": "Q3_K",
    "Q4_K_S": "Q4_K",
    "Q4_K_M": "Q4_K",
    "Q5_K_S": "Q5_K",
    "Q5_K_M": "Q5_K",
}
"""The most common format of each mixture of llama.cpp."""


def is_mixture(text: str) -> bool:
    return text.strip().upper() in MIXTURES


def claims(tensors: Mapping[str, TensorInfo], settings: Mapping[str, Any]) -> bool:
    return tensors.keys() == {"weight"} and tensors["weight"].format in FORMATS


@hookimpl
def ostro_quantizers() -> Iterable[Quantizer]:
    yield Quantizer(name="gguf", claims=claims, storage=f"{__name__}.storage:Blocks", makes=MAKES)


@hookimpl
def ostro_planners() -> Iterable[Planner]:
    yield Planner(
        name="gguf_mixtures",
        claims=is_mixture,
        plan=f"{__name__}.mixtures:plan",
        usage="a mixture of llama.cpp (Q4_K_M)",
    )
