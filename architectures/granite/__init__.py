"""Granite 3 and 4 (dense)."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

FACTORS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.125,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
}
SHAPE = ("head_dim",)
TINY = {k: v for k, v in {**LLAMA, **FACTORS}.items() if k not in SHAPE}
WIDE = {k: v for k, v in {**LLAMA_WIDE, **FACTORS}.items() if k not in SHAPE}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="granite",
        api=(0, 2),
        classes=("GraniteForCausalLM",),
        gguf=("granite",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names="ostro.architectures.llama.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:GraniteForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )
