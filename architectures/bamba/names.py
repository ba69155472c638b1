"""Bamba's names in hub checkpoints; its GGUF files are those of granitemoehybrid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostro import Names, Pair
from ostro.architectures.bamba.model import Config
from ostro.architectures.llama import names as llama
from ostro.architectures.mamba2 import names as mamba2

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
        ),
        gguf=(*mamba2.mixer_names(ATTENTION, config.mixer()), *llama.names(config).gguf),
    )


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of states; a layer of Mamba 2 has no key heads."""
    heads = [
        config.num_key_value_heads if config.attends(i) else 0
        for i in range(config.num_hidden_layers)
    ]
    return mamba2.state_keys(config.mixer()) | {
        "general.architecture": "granitehybrid",
        "attention.head_count_kv": heads,
        "rope.scaling.finetuned": True,
    }
