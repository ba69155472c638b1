"""Qwen3.5's names on the hub, also of the text part of checkpoints with media, and in GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ostro import Container, HeadRows, Names, Pair
from ostro.architectures.llama import names as llama
from ostro.architectures.mixtral import model as mixtral
from ostro.architectures.mixtral.names import STACKS
from ostro.architectures.qwen2_moe.names import SHARED
from ostro.architectures.qwen3_5.model import DeltaConfig
from ostro.architectures.qwen3_5.tiled import TiledColumns, TiledRows
from ostro.architectures.qwen3_next import names as qwen3_next
from ostro.architectures.qwen3_next.names import ATTENTION, Filters, LayerNames, Rate

LANGUAGE = "model.language_model"
IGNORED = (*Names.ignore, "mtp.{any}", "model.mtp.{any}")


def names(config: DeltaConfig) -> LayerNames:
    """The names of text models; the vision encoder of a checkpoint with media is ignored."""
    return LayerNames(
        hub=hub_pairs(config, "model", LANGUAGE),
        gguf=gguf_pairs(config),
        ignore=(*IGNORED, "model.visual.{any}"),
        experts=config.num_local_experts if isinstance(config, mixtral.SparseConfig) else 0,
        layers=config.num_hidden_layers,
        stacks=(
            *STACKS,
            *(
                replace(pair, theirs=pair.theirs.replace("model", LANGUAGE, 1))
                for pair in STACKS
                if pair.theirs.startswith("model.")
            ),
        ),
    )


def hub_pairs(config: DeltaConfig, *roots: str) -> tuple[Pair, ...]:
    """The pairs of a decoder that checkpoints have at one of `roots`."""
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    values = config.linear_num_value_heads * config.linear_value_head_dim
    pairs = [
        pair
        for root in roots
        for pair in (
            *qwen3_next.parts(
                f"{root}.layers.{{i}}.linear_attn.in_proj_qkv", "qkv", 1, keys, keys, values
            ),
            *qwen3_next.hub_pairs(root),
        )
    ]
    return (*pairs, Pair(LANGUAGE, "model"))


def gguf_pairs(config: DeltaConfig) -> tuple[Pair, ...]:
    """The pairs of GGUF files, whose value heads are in tiled order."""
    heads, dk = config.linear_num_key_heads, config.linear_key_head_dim
    share, dv = config.linear_num_value_heads // heads, config.linear_value_head_dim
    keys, values = heads * dk, heads * share * dv
    q, k, v = qwen3_next.parts("blk.{i}.attn_qkv", "qkv", 1, keys, keys, values)
    part = HeadRows(1, 2 * keys + values, 2 * keys, 2 * keys + values)
    return (
        *SHARED,
        q,
        k,
        replace(v, transform=TiledRows(heads, share, dv, first=part)),
        Pair("blk.{i}.attn_gate", f"{ATTENTION}.in_proj_z", TiledRows(heads, share, dv)),
        Pair("blk.{i}.ssm_beta", f"{ATTENTION}.in_proj_b", TiledRows(heads, share)),
        Pair("blk.{i}.ssm_alpha", f"{ATTENTION}.in_proj_a", TiledRows(heads, share)),
        Pair(
            "blk.{i}.ssm_conv1d.weight",
            f"{ATTENTION}.conv1d.weight",
            TiledRows(heads, share, dv, start=2 * keys, first=Filters()),
        ),
        Pair("blk.{i}.ssm_dt.bias", f"{ATTENTION}.dt_bias", TiledRows(heads, share)),
        Pair("blk.{i}.ssm_a", f"{ATTENTION}.A_log", TiledRows(heads, share, first=Rate())),
        Pair("blk.{i}.ssm_norm", f"{ATTENTION}.norm"),
        Pair("blk.{i}.ssm_out", f"{ATTENTION}.out_proj", TiledColumns(heads, share)),
        Pair("blk.{i}.post_attention_norm", f"{qwen3_next.LAYER}.post_attention_layernorm"),
        *llama.GGUF,
    )


def gguf_config(container: Container) -> dict[str, Any]:
    """Qwen3-Next's keys, without those of experts for a dense model."""
    raw = qwen3_next.gguf_config(container)
    if raw["num_experts"] is None:
        experts = ("expert", "norm_topk_prob")
        raw = {key: value for key, value in raw.items() if not any(e in key for e in experts)}
        raw.pop("moe_intermediate_size")
    return raw


def gguf_metadata(config: DeltaConfig, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Qwen3-Next's keys; without media, the sections of the rope are those of Qwen3.5."""
    sections = config.rope_parameters.get("mrope_section", (11, 11, 10))
    keys = qwen3_next.gguf_metadata(config, raw)
    return keys | {"rope.dimension_sections": [*sections, 0, 0][:4]}
