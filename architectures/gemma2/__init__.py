"""Gemma 2."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

GEMMA = {"sliding_window": 8, "query_pre_attn_scalar": 24, "tie_word_embeddings": True}
TINY = {**LLAMA, **GEMMA}
WIDE = {**LLAMA_WIDE, **GEMMA}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="gemma2",
        api=(0, 2),
        classes=("Gemma2ForCausalLM",),
        gguf=("gemma2",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Gemma2ForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )
