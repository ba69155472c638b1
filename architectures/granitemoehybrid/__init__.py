"""Granite 4.0: hybrid and dense, with and without experts."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.bamba import LARGE, STATES
from ostro.architectures.granite import TINY as GRANITE
from ostro.architectures.granite import WIDE as GRANITE_WIDE

OWN = {
    **STATES,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "shared_intermediate_size": 48,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
}
TINY = {**GRANITE, **OWN}
WIDE = {**GRANITE_WIDE, **OWN, **LARGE, "shared_intermediate_size": 256}
DENSE = {"num_local_experts": 0, "shared_intermediate_size": 96, "position_embedding_type": "rope"}
"""The changes of a tiny config for a dense model with rope."""


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="granitemoehybrid",
        api=(0, 2),
        classes=("GraniteMoeHybridForCausalLM",),
        gguf=("granitehybrid",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:GraniteMoeHybridForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )
