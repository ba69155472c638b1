"""MiniMax-M2's names: those of Mixtral, and the router's bias beside the router."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostro import Container, ExpertNames, Names, Pair
from ostro.architectures.llama import names as llama
from ostro.architectures.minimax_m2.model import Config
from ostro.architectures.mixtral import names as mixtral
from ostro.errors import ConfigError

BIAS = f"{llama.LAYER}.mlp.gate.e_score_correction_bias"
HUB = (
    Pair(f"{mixtral.OLD}.e_score_correction_bias", BIAS),
    Pair(f"{llama.LAYER}.mlp.e_score_correction_bias", BIAS),
    *mixtral.HUB,
)
"""The names on the hub, the second in transformers 5."""

GGUF = (Pair("blk.{i}.exp_probs_b.bias", BIAS), mixtral.GATE, *llama.GGUF)
SIGMOID = 2
"""The value of expert_gating_func."""


def names(config: Config) -> ExpertNames:
    """llama.cpp's converter does not reorder the rows of q and k of this family.

    The multi-token prediction layers after the last layer are ignored.
    """
    first = config.num_hidden_layers
    further = range(first, first + config.num_mtp_modules)
    return ExpertNames(
        hub=HUB,
        gguf=GGUF,
        experts=config.num_local_experts,
        stacks=mixtral.STACKS,
        ignore=(*Names.ignore, *(f"model.layers.{i}.{{any}}" for i in further)),
    )


def gguf_config(container: Container) -> dict[str, Any]:
    """Mixtral's keys, and the width of the experts."""
    get = llama.under("minimax-m2", container.metadata)
    if get("expert_gating_func", SIGMOID) != SIGMOID:
        raise ConfigError(f"{container.path.name}: minimax-m2.expert_gating_func is not sigmoid")
    raw = mixtral.gguf_config(container)
    width = {"intermediate_size": get("expert_feed_forward_length", raw.get("intermediate_size"))}
    rotated = {"rotary_dim": get("rope.dimension_count")}
    return raw | width | rotated


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The router's gate, the experts' width, and the rotated dimensions."""
    return {
        "expert_gating_func": SIGMOID,
        "expert_feed_forward_length": config.intermediate_size,
    }
