"""Gemma's names; hub checkpoints store norm weights w, the model multiplies by 1 + w."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostro import Add, Container, Names, Pair
from ostro.architectures.gemma2.model import Config
from ostro.architectures.llama import names as llama

LAYER = "model.layers.{i}"
NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    "self_attn.q_norm",
    "self_attn.k_norm",
)
HUB = (
    *(Pair(f"{LAYER}.{norm}", f"{LAYER}.{norm}", Add(1.0)) for norm in NORMS),
    Pair("model.norm", "model.norm", Add(1.0)),
)
GGUF = (
    Pair("blk.{i}.post_attention_norm", f"{LAYER}.post_attention_layernorm"),
    Pair("blk.{i}.ffn_norm", f"{LAYER}.pre_feedforward_layernorm"),
    Pair("blk.{i}.post_ffw_norm", f"{LAYER}.post_feedforward_layernorm"),
    *(pair for pair in llama.GGUF if pair.theirs != "blk.{i}.ffn_norm"),
)


def names(config: Config) -> Names:
    """GGUF norms include the 1, and the rows of q and k are not reordered."""
    return Names(hub=HUB, gguf=GGUF)


def gguf_config(container: Container) -> dict[str, Any]:
    """Llama's keys, windows and the two softcaps, by default those of the published models.

    The scale of the scores follows from the size of the model, since no key stores it.
    """
    raw = llama.gguf_config(container) | windows(container.metadata)
    raw["sliding_window"] = container.metadata.get("gemma2.attention.sliding_window", 4096)
    raw["attn_logit_softcapping"] = container.metadata.get("gemma2.attn_logit_softcapping", 50.0)
    raw["final_logit_softcapping"] = container.metadata.get("gemma2.final_logit_softcapping", 30.0)
    raw["query_pre_attn_scalar"] = query_scalar(raw, 46)
    return raw


def windows(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The layers with a window, from a list or an interval in the metadata."""
    arch = metadata["general.architecture"]
    pattern = metadata.get(f"{arch}.attention.sliding_window_pattern")
    if pattern is None:
        return {}
    if isinstance(pattern, int):
        return {"sliding_window_pattern": pattern}
    return {"layer_types": ["sliding_attention" if p else "full_attention" for p in pattern]}


def query_scalar(raw: Mapping[str, Any], layers: int) -> float:
    """head_dim, but hidden / heads for the 27B, identified by its layers (as in llama.cpp)."""
    if raw.get("num_hidden_layers") == layers:
        return float(raw["hidden_size"] / raw["num_attention_heads"])
    return float(raw.get("head_dim", 256))
