"""Mixtral: Llama whose feed-forward is a sparse mixture of experts."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

MIXTURE = {"num_local_experts": 6, "num_experts_per_tok": 2}
TINY = {**LLAMA, **MIXTURE}
WIDE = {**LLAMA_WIDE, **MIXTURE}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="mixtral",
        api=(0, 2),
        classes=("MixtralForCausalLM",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata="ostro.architectures.mistral.names:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:MixtralForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )
