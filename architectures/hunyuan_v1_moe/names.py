"""Hunyuan's names with experts, separate on the hub and stacked in GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostro import Container, ExpertNames, Pair
from ostro.architectures.hunyuan_v1_dense import names as dense
from ostro.architectures.hunyuan_v1_moe.model import Config
from ostro.architectures.llama import names as llama
from ostro.architectures.mixtral import names as mixtral

MLP = f"{llama.LAYER}.mlp"
HUB = (*dense.HUB, Pair(f"{MLP}.gate.wg", f"{MLP}.gate"))
GGUF = (
    mixtral.GATE,
    *(
        Pair(f"blk.{{i}}.ffn_{part}_shexp", f"{MLP}.shared_mlp.{part}_proj")
        for part in ("gate", "up", "down")
    ),
    *llama.GGUF,
)


def names(config: Config) -> ExpertNames:
    """llama.cpp's converter does not reorder the rows of q and k of this family."""
    experts = config.num_local_experts
    return ExpertNames(hub=HUB, gguf=GGUF, experts=experts, stacks=mixtral.STACKS)


def gguf_config(container: Container) -> dict[str, Any]:
    """Mixtral's keys; llama.cpp renormalises, and freq_base includes the factor alpha."""
    get = llama.under("hunyuan-moe", container.metadata)
    return mixtral.gguf_config(container) | {
        "moe_topk": get("expert_used_count"),
        "moe_intermediate_size": get("expert_feed_forward_length"),
        "num_shared_expert": get("expert_shared_count"),
    }


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The width of the shared expert, which is that of an MLP."""
    width = config.intermediate_size
    return {"expert_shared_feed_forward_length": width, "expert_feed_forward_length": first(config)}


def first(config: Config) -> int:
    """The width of an expert."""
    return (*config.moe_intermediate_size, config.intermediate_size)[0]
