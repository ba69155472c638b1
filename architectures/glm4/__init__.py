"""GLM-4-0414 and GLM-Z1."""

from collections.abc import Iterable

from ostro import Architecture, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

SHAPE = {"rms_norm_eps": 1e-5, "pad_token_id": 0, "eos_token_id": 2}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="glm4",
        api=(0, 2),
        classes=("Glm4ForCausalLM",),
        gguf=("glm4",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        tiny={**LLAMA, **SHAPE},
        wide={**LLAMA_WIDE, **SHAPE},
        reference="transformers:Glm4ForCausalLM",
        mutants=f"{__name__}.mutants:mutants",
        trunk=True,
    )
