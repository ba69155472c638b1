"""ERNIE 4.5 (dense)."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

BIASED = {"use_bias": True}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="ernie4_5",
        api=(0, 2),
        classes=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
        gguf=("ernie4_5",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        conformance=Conformance(
            tiny={**LLAMA, **BIASED},
            wide={**LLAMA_WIDE, **BIASED},
            reference="transformers:Ernie4_5ForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )
