"""Bamba's names in hub checkpoints; its GGUF files are those of granitemoehybrid."""

from __future__ import annotations

from ostro import Names, Pair
from ostro.architectures.bamba.model import Config

LAYER = "model.layers.{i}"
ATTENTION = f"{LAYER}.self_attn"
MIXERS = (
    *(Pair(f"{ATTENTION}.{part}_proj", f"{ATTENTION}.{part}_proj") for part in "qkvo"),
    Pair(f"{LAYER}.mamba", ATTENTION),
)
"""The layers of attention, and those of Mamba 2."""


def names(config: Config) -> Names:
    return Names(
        hub=(
            *MIXERS,
            Pair(f"{LAYER}.pre_ff_layernorm", f"{LAYER}.post_attention_layernorm"),
            Pair(f"{LAYER}.feed_forward", f"{LAYER}.mlp"),
            Pair("model.final_layernorm", "model.norm"),
        )
    )
