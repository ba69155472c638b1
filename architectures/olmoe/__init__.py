"""OLMoE and FlexOlmo."""

from collections.abc import Iterable
from dataclasses import replace

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

MIXTURE = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SHAPE = ("head_dim",)
FLEX = {k: v for k, v in {**LLAMA, **MIXTURE}.items() if k not in SHAPE}
FLEX_WIDE = {k: v for k, v in {**LLAMA_WIDE, **MIXTURE}.items() if k not in SHAPE}
CLIP = {"clip_qkv": 1.5}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    olmoe = Architecture(
        name="olmoe",
        api=(0, 2),
        classes=("OlmoeForCausalLM",),
        gguf=("olmoe",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        conformance=Conformance(
            tiny={**FLEX, **CLIP},
            wide={**FLEX_WIDE, **CLIP},
            reference="transformers:OlmoeForCausalLM",
            mutants=f"{__name__}.mutants:olmoe",
        ),
    )
    yield olmoe
    yield replace(
        olmoe,
        name="flex_olmo",
        classes=("FlexOlmoForCausalLM",),
        gguf=(),
        config=f"{__name__}.flex:Config",
        model=f"{__name__}.flex:Model",
        gguf_config=None,
        conformance=Conformance(
            tiny=FLEX,
            wide=FLEX_WIDE,
            reference="transformers:FlexOlmoForCausalLM",
            mutants=f"{__name__}.mutants:flex_olmo",
        ),
    )
