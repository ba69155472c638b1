"""Phi-3, Phi-3.5-mini, Phi-4 and Phi-4-mini."""

from collections.abc import Iterable

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE

SHAPE = ("head_dim",)


def changes(pairs: int) -> dict[str, object]:
    """The fields beyond Llama's, with a longrope for so many rotated pairs of a head."""
    return {
        "sliding_window": 24,
        "original_max_position_embeddings": 32,
        "pad_token_id": 0,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.75,
            "short_factor": [1.0 + i / 8 for i in range(pairs)],
            "long_factor": [1.5 + i / 2 for i in range(pairs)],
        },
    }


TINY = {k: v for k, v in {**LLAMA, **changes(6)}.items() if k not in SHAPE}
WIDE = {k: v for k, v in {**LLAMA_WIDE, **changes(24)}.items() if k not in SHAPE}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="phi3",
        api=(0, 2),
        classes=("Phi3ForCausalLM",),
        gguf=("phi3",),
        config=f"{__name__}.config:Config",
        model="ostro.architectures.llama.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference="transformers:Phi3ForCausalLM",
            mutants=f"{__name__}.mutants:mutants",
        ),
        trunk=True,
    )
