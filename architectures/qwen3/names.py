"""Qwen3's names."""

from __future__ import annotations

from ostro import Names
from ostro.architectures.llama.names import GGUF
from ostro.architectures.qwen3.model import Config


def names(config: Config) -> Names:
    """llama.cpp's converter does not reorder the rows of q and k of this family."""
    return Names(gguf=GGUF)
