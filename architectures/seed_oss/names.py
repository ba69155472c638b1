"""Seed-OSS's names in GGUF files."""

from __future__ import annotations

from ostro import Names, Pair
from ostro.architectures.llama.names import GGUF, LAYER
from ostro.architectures.seed_oss.model import Config

NORM = Pair("blk.{i}.post_attention_norm", f"{LAYER}.post_attention_layernorm")


def names(config: Config) -> Names:
    """The norm before the MLP has the name of one after attention; q and k are not reordered."""
    return Names(gguf=(NORM, *(pair for pair in GGUF if pair.theirs != "blk.{i}.ffn_norm")))
