"""Granite's keys in GGUF files; its names and the order of rows are Llama's."""

from __future__ import annotations

from typing import Any

from ostro import Container
from ostro.architectures.llama import names as llama

FACTORS = {
    "embedding_multiplier": "embedding_scale",
    "attention_multiplier": "attention.scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}


def gguf_config(container: Container) -> dict[str, Any]:
    """Llama's keys and the four factors."""
    get = llama.under(container.metadata["general.architecture"], container.metadata)
    found = {field: get(key) for field, key in FACTORS.items()}
    return llama.gguf_config(container) | {k: v for k, v in found.items() if v is not None}
