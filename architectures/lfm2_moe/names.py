"""LFM2-MoE's names: those of LFM2, and of experts below feed_forward instead of mlp."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostro import Container, ExpertNames, Pair
from ostro.architectures.lfm2 import names as lfm2
from ostro.architectures.lfm2_moe.model import Config
from ostro.architectures.llama import names as llama
from ostro.architectures.mixtral import names as mixtral
from ostro.errors import ConfigError

PARENT = (".mlp.", ".feed_forward.")
MLP = f"{lfm2.LAYER}.feed_forward"
HUB = (
    Pair(f"{MLP}.expert_bias", f"{MLP}.gate.e_score_correction_bias"),
    Pair(f"{MLP}.experts.{{e}}.w1", f"{MLP}.experts.{{e}}.gate_proj"),
    Pair(f"{MLP}.experts.{{e}}.w3", f"{MLP}.experts.{{e}}.up_proj"),
    Pair(f"{MLP}.experts.{{e}}.w2", f"{MLP}.experts.{{e}}.down_proj"),
    *lfm2.HUB,
)
GGUF = (
    Pair("blk.{i}.exp_probs_b.bias", f"{MLP}.gate.e_score_correction_bias"),
    Pair("blk.{i}.ffn_gate_inp", f"{MLP}.gate"),
    *lfm2.GGUF,
)
STACKS = tuple(
    Pair(pair.theirs.replace(*PARENT), pair.ours.replace(*PARENT), pair.transform)
    for pair in mixtral.STACKS
)
SIGMOID = 2
"""The value of expert_gating_func."""


def names(config: Config) -> ExpertNames:
    return ExpertNames(hub=HUB, gguf=GGUF, experts=config.num_local_experts, stacks=STACKS)


def gguf_config(container: Container) -> dict[str, Any]:
    """LFM2's keys and those of the experts; llama.cpp always renormalises for this family."""
    get = llama.under("lfm2moe", container.metadata)
    if get("expert_gating_func", SIGMOID) != SIGMOID:
        raise ConfigError(f"{container.path.name}: lfm2moe.expert_gating_func is not sigmoid")
    return lfm2.gguf_config(container) | {
        "num_experts": get("expert_count"),
        "num_experts_per_tok": get("expert_used_count"),
        "moe_intermediate_size": get("expert_feed_forward_length"),
        "num_dense_layers": get("leading_dense_block_count", 0),
        "routed_scaling_factor": get("expert_weights_scale", 1.0),
        "use_expert_bias": any(name.endswith(".exp_probs_b.bias") for name in container.tensors),
        "norm_topk_prob": True,
    }


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """LFM2's keys and the router's gate."""
    own = {"expert_gating_func": SIGMOID, "feed_forward_length": config.intermediate_size}
    return lfm2.gguf_metadata(config, raw) | own
