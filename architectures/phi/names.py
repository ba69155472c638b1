"""Phi's names on the hub and in GGUF files, and the GGUF names of its trunk."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

from ostro import Container, HeadRows, Names, Pair
from ostro.architectures.llama import names as llama
from ostro.architectures.phi.model import Config
from ostro.config import TextConfig

LAYER = "model.layers.{i}"
HUB = (
    Pair("model.final_layernorm", "model.norm"),
    Pair(f"{LAYER}.self_attn.dense", f"{LAYER}.self_attn.o_proj"),
)
MLP = {"ffn_up": "fc1", "ffn_down": "fc2"}


def gguf_pairs(config: TextConfig) -> tuple[Pair, ...]:
    """llama.cpp's names of the trunk: Llama's, an ungated MLP, and q, k and v apart or fused."""
    d, kv = config.head_dim, config.num_key_value_heads
    ends = list(accumulate((config.num_attention_heads * d, kv * d, kv * d), initial=0))
    rows = [HeadRows(1, ends[-1], *span) for span in pairwise(ends)]
    parts = [f"{LAYER}.self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj")]
    return (
        *(pair for pair in llama.GGUF if ".mlp." not in pair.ours),
        *(Pair(f"blk.{{i}}.{theirs}", f"{LAYER}.mlp.{ours}") for theirs, ours in MLP.items()),
        *map(Pair, ("blk.{i}.attn_qkv",) * 3, parts, rows),
    )


def names(config: Config) -> Names:
    """llama.cpp's converter does not reorder the rows of q and k of this family."""
    return Names(hub=HUB, gguf=gguf_pairs(config))


def gguf_config(container: Container) -> dict[str, Any]:
    """Llama's keys, with the epsilon of layer norms. Whole heads rotate if no key states a part."""
    raw = llama.gguf_config(container)
    get = llama.under(container.metadata["general.architecture"], container.metadata)
    raw["rope_parameters"].setdefault("partial_rotary_factor", 1.0)
    raw["layer_norm_eps"] = get("attention.layer_norm_epsilon")
    return raw


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The epsilon is that of layer norms only."""
    return {"attention.layer_norm_rms_epsilon": None}
