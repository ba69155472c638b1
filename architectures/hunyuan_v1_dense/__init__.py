"""Hunyuan (dense): 0.5B to 7B."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

ROPE = {
    "rope_parameters": {
        "rope_type": "dynamic",
        "rope_theta": 10000.0,
        "alpha": 50.0,
        "factor": 1.0,
    }
}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="hunyuan_v1_dense",
        api=(0, 2),
        classes=("HunYuanDenseV1ForCausalLM",),
        gguf=("hunyuan-dense",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config="ostro.architectures.llama.names:gguf_config",
        conformance=Conformance(
            tiny={**LLAMA, **ROPE},
            wide={**LLAMA_WIDE, **ROPE},
            reference="transformers:HunYuanDenseV1ForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )
