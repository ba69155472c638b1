"""Phi-3's names: q, k and v are one tensor, as are gate and up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostro import Container, Names
from ostro.architectures.llama import names as llama
from ostro.architectures.llama.model import Config
from ostro.architectures.llama.names import LAYER, gate_up, qkv, row_parts

FUSED = ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")


def names(config: Config) -> Names:
    """The rows of q and k are not reordered in GGUF files."""
    rest = [p for p in llama.GGUF if p.theirs.removeprefix("blk.{i}.") not in FUSED]
    return Names(
        hub=(
            *row_parts(f"{LAYER}.self_attn.qkv_proj", qkv(config)),
            *row_parts(f"{LAYER}.mlp.gate_up_proj", gate_up(config)),
        ),
        gguf=(
            *rest,
            *row_parts("blk.{i}.attn_qkv", qkv(config)),
            *row_parts("blk.{i}.ffn_up", gate_up(config)),
        ),
    )


def gguf_config(container: Container) -> dict[str, Any]:
    """Llama's keys; a window of 0 is none."""
    raw = llama.gguf_config(container)
    trained = raw["rope_parameters"].get("original_max_position_embeddings")
    if trained is not None:
        raw["original_max_position_embeddings"] = trained
    return raw | {"sliding_window": raw["sliding_window"] or None}


def gguf_metadata(config: Any, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The original context; a window of 0 is none."""
    return {
        "attention.sliding_window": config.sliding_window or 0,
        "rope.scaling.original_context_length": config.rope_parameters.get(
            "original_max_position_embeddings", config.original_max_position_embeddings
        ),
        "rope.scaling.type": None,
    }
