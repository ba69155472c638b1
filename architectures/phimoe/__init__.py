"""Phi-3.5-MoE."""

from collections.abc import Iterable
from typing import Any

from ostro import Architecture, Conformance, hookimpl
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.llama import WIDE as LLAMA_WIDE


def changes(pairs: int) -> dict[str, Any]:
    """The fields beyond Llama's, with a longrope for so many pairs of a head.

    The jitter is large, so that some experts share their weight.
    """
    return {
        "attention_bias": True,
        "lm_head_bias": True,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "router_jitter_noise": 0.3,
        "sliding_window": 24,
        "original_max_position_embeddings": 32,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0 + i / 8 for i in range(pairs)],
            "long_factor": [1.5 + i / 2 for i in range(pairs)],
            "short_mscale": 1.1,
            "long_mscale": 1.3,
            "original_max_position_embeddings": 32,
        },
    }


TINY = {k: v for k, v in {**LLAMA, **changes(8)}.items() if k != "head_dim"}
WIDE = {k: v for k, v in {**LLAMA_WIDE, **changes(32)}.items() if k != "head_dim"}


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    yield Architecture(
        name="phimoe",
        api=(0, 2),
        classes=("PhimoeForCausalLM", "PhiMoEForCausalLM"),
        gguf=("phimoe",),
        config=f"{__name__}.model:Config",
        model=f"{__name__}.model:Model",
        names=f"{__name__}.names:names",
        gguf_config=f"{__name__}.names:gguf_config",
        gguf_metadata=f"{__name__}.names:gguf_metadata",
        conformance=Conformance(
            tiny=TINY,
            wide=WIDE,
            reference=f"{__name__}.reference:scaled",
            mutants=f"{__name__}.mutants:mutants",
        ),
    )
