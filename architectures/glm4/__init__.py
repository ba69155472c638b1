"""GLM-4-0414 and GLM-Z1."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.glm import TINY, WIDE


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="glm4",
        api=(0, 2),
        classes=("Glm4ForCausalLM",),
        gguf=("glm4",),
        config="ostro.architectures.glm.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Glm4ForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )
