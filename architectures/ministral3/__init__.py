"""Ministral 3: the text models of Ministral 3 and Devstral 2."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.5,
}
OWN = {"rope_parameters": ROPE, "sliding_window": None}
TINY = {**LLAMA, **OWN}
WIDE = {**LLAMA_WIDE, **OWN}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="ministral3",
        api=(0, 2),
        classes=("Ministral3ForCausalLM",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names="ostro.architectures.llama.names:names",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Ministral3ForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )
