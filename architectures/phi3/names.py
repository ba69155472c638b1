"""Phi-3's names: q, k and v are one tensor, as are gate and up."""

from __future__ import annotations

from typing import Any

from ostro import Container, Names
from ostro.architectures.llama import names as llama
from ostro.architectures.llama.model import Config
from ostro.architectures.llama.names import gate_up, row_parts

FUSED = ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")
LAYER = llama.LAYER


def names(config: Config) -> Names:
    """The rows of q and k are not reordered in GGUF files."""
    heads, kv, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    counts = {"q": heads, "k": kv, "v": kv}
    qkv = {f"{LAYER}.self_attn.{side}_proj": n * d for side, n in counts.items()}
    rest = [p for p in llama.GGUF if p.theirs.removeprefix("blk.{i}.") not in FUSED]
    return Names(
        hub=(
            *row_parts(f"{LAYER}.self_attn.qkv_proj", qkv),
            *row_parts(f"{LAYER}.mlp.gate_up_proj", gate_up(config)),
        ),
        gguf=(
            *rest,
            *row_parts("blk.{i}.attn_qkv", qkv),
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
