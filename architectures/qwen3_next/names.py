"""Qwen3-Next's names: a delta net lies where attention would, and most norms hold w for 1 + w."""

from __future__ import annotations

from ostro import Add, ExpertNames, Names, Pair
from ostro.architectures.mixtral.names import STACKS
from ostro.architectures.qwen3_next.model import Config

LAYER = "model.layers.{i}"
SAME = tuple(f"{LAYER}.self_attn.{part}_proj" for part in "qkvo")
NORMS = (
    f"{LAYER}.input_layernorm",
    f"{LAYER}.post_attention_layernorm",
    f"{LAYER}.self_attn.q_norm",
    f"{LAYER}.self_attn.k_norm",
    "model.norm",
)
HUB = (
    *(Pair(norm, norm, Add(1.0)) for norm in NORMS),
    *(Pair(name, name) for name in SAME),
    Pair(f"{LAYER}.linear_attn", f"{LAYER}.self_attn"),
)


def names(config: Config) -> ExpertNames:
    """The layers that guess further tokens (mtp) are left out."""
    return ExpertNames(
        hub=HUB,
        ignore=(*Names.ignore, "mtp.{any}"),
        experts=config.num_local_experts,
        stacks=STACKS,
    )
