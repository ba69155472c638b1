"""ERNIE 4.5's names and keys in GGUF files."""

from __future__ import annotations

from typing import Any

from ostro import Container, Names
from ostro.architectures.ernie4_5.model import Config
from ostro.architectures.llama import names as llama


def names(config: Config) -> Names:
    """llama.cpp's converter does not reorder the rows of q and k of this family."""
    return Names(gguf=llama.GGUF)


def gguf_config(container: Container) -> dict[str, Any]:
    """Llama's keys; the biases follow from the tensors."""
    raw = llama.gguf_config(container)
    return raw | {"use_bias": raw["attention_bias"]}
