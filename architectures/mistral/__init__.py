"""Mistral and Ministral: Llama with a sliding window in all or some layers."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

TINY = {**LLAMA, "sliding_window": 8}
WIDE = {**LLAMA_WIDE, "sliding_window": 8}
TYPES = {"layer_types": ["full_attention", "sliding_attention"]}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="mistral",
        api=(0, 2),
        classes=("MistralForCausalLM",),
        config=f"{__name__}.config:Config",
        model="ostro.architectures.llama.model:Model",
        names="ostro.architectures.llama.names:names",
        gguf=("mistral3",),
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(tiny=TINY, wide=WIDE, reference="transformers:MistralForCausalLM"),
        trunk=True,
    )
    yield Architecture(
        name="ministral",
        api=(0, 2),
        classes=("MinistralForCausalLM",),
        config=f"{__name__}.config:Config",
        model="ostro.architectures.llama.model:Model",
        names="ostro.architectures.llama.names:names",
        conformance=Conformance(
            tiny={**TINY, **TYPES},
            wide={**WIDE, **TYPES},
            reference="transformers:MinistralForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )
