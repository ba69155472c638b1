"""Gemma 1 and CodeGemma."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

SHAPE = {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="gemma",
        api=(0, 2),
        classes=("GemmaForCausalLM",),
        gguf=("gemma",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config="ostro.architectures.llama.names:gguf_config",
        conformance=Conformance(
            tiny={**LLAMA, **SHAPE},
            wide={**LLAMA_WIDE, **SHAPE},
            reference="transformers:GemmaForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )
