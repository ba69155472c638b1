"""Phi-3.5-MoE's names: Mixtral's on the hub, with a router in transformers 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostro import Container, ExpertNames, Pair
from ostro.architectures.mixtral import names as mixtral
from ostro.architectures.phi.names import gguf_pairs
from ostro.architectures.phimoe.model import SCALES, Config

ROUTER = Pair(f"{mixtral.LAYER}.mlp.router", f"{mixtral.LAYER}.mlp.gate")


def names(config: Config) -> ExpertNames:
    """llama.cpp's converter does not reorder the rows of q and k of this family."""
    return ExpertNames(
        hub=(*mixtral.HUB, ROUTER),
        gguf=(mixtral.GATE, *gguf_pairs(config)),
        experts=config.num_local_experts,
        stacks=mixtral.STACKS,
    )


def gguf_config(container: Container) -> dict[str, Any]:
    """Mixtral's keys; biases follow from the tensors. Files have one factor of longrope."""
    raw = mixtral.gguf_config(container)
    rule = raw["rope_parameters"]
    if rule["rope_type"] == "longrope":
        rule |= dict.fromkeys(SCALES, rule["attention_factor"])
        rule.setdefault("original_max_position_embeddings", raw.get("max_position_embeddings"))
    return raw | {
        "sliding_window": raw["sliding_window"] or None,
        "attention_bias": "blk.0.attn_output.bias" in container.tensors,
        "lm_head_bias": "output.bias" in container.tensors,
    }


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The factor of longrope, one for both lists."""
    return {
        "attention.sliding_window": config.sliding_window or 0,
        "rope.scaling.attn_factor": config.rope_parameters.get("short_mscale"),
        "rope.scaling.type": None,
        "attention.layer_norm_epsilon": None,
    }
