"""Granite's keys in GGUF files; its names and the order of rows are Llama's."""

from __future__ import annotations

from collections.abc import Iterable
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
    """Llama's keys and the four factors; Granite 4.0 lists the key heads of every layer."""
    get = llama.under(container.metadata["general.architecture"], container.metadata)
    found = {field: get(key) for field, key in FACTORS.items()}
    raw = llama.gguf_config(container)
    heads = raw.get("num_key_value_heads")
    if isinstance(heads, Iterable):
        found["num_key_value_heads"] = max(map(int, heads), default=0)
    return raw | {k: v for k, v in found.items() if v is not None}
