"""Seed-OSS."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

BIASES = {"attention_bias": True, "attention_out_bias": True}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="seed_oss",
        api=(0, 2),
        classes=("SeedOssForCausalLM",),
        gguf=("seed_oss",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config="ostro.architectures.llama.names:gguf_config",
        conformance=Conformance(
            tiny={**LLAMA, **BIASES},
            wide={**LLAMA_WIDE, **BIASES},
            reference="transformers:SeedOssForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )
