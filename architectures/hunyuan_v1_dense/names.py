"""Hunyuan's names."""

from __future__ import annotations

from ostro import Names, Pair
from ostro.architectures.hunyuan_v1_dense.model import Config
from ostro.architectures.llama import names as llama

ATTENTION = f"{llama.LAYER}.self_attn"
HUB = (
    Pair(f"{ATTENTION}.query_layernorm", f"{ATTENTION}.q_norm"),
    Pair(f"{ATTENTION}.key_layernorm", f"{ATTENTION}.k_norm"),
)


def names(config: Config) -> Names:
    """llama.cpp's converter does not reorder the rows of q and k of this family."""
    return Names(hub=HUB, gguf=llama.GGUF)
