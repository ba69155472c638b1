"""Gemma's norms: hub checkpoints store w where the model multiplies by 1 + w."""

from __future__ import annotations

from ostro import Add, Names, Pair
from ostro.architectures.gemma.model import Config
from ostro.architectures.llama.names import GGUF, LAYER

HUB = (
    Pair(f"{LAYER}.input_layernorm", f"{LAYER}.input_layernorm", Add(1.0)),
    Pair(f"{LAYER}.post_attention_layernorm", f"{LAYER}.post_attention_layernorm", Add(1.0)),
    Pair("model.norm", "model.norm", Add(1.0)),
)


def names(config: Config) -> Names:
    """llama.cpp's converter adds the 1 itself, and does not reorder the rows of q and k."""
    return Names(hub=HUB, gguf=GGUF)
