"""Code World Model."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

LAYERS = {
    "sliding_window": 8,
    "bos_token_id": 1,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 16.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
    },
}
TYPES = {"layer_types": ["sliding_attention", "full_attention"]}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="cwm",
        api=(0, 2),
        classes=("CwmForCausalLM",),
        config=f"{__name__}.config:Config",
        model="ostro.architectures.llama.model:Model",
        conformance=Conformance(
            tiny={**LLAMA, **LAYERS, "num_hidden_layers": 5},
            wide={**LLAMA_WIDE, **LAYERS, **TYPES},
            reference="transformers:CwmForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )
