"""Qwen3-MoE's names: separate experts on the hub, stacked experts in GGUF files."""

from __future__ import annotations

from typing import Any

from ostro import Container, ExpertNames
from ostro.architectures.llama import names as llama
from ostro.architectures.mixtral import names as mixtral
from ostro.architectures.qwen3_moe.model import Config


def names(config: Config) -> ExpertNames:
    """llama.cpp's converter does not reorder the rows of q and k of this family."""
    gguf = (mixtral.GATE, *llama.GGUF)
    return ExpertNames(gguf=gguf, experts=config.num_local_experts, stacks=mixtral.STACKS)


def gguf_config(container: Container) -> dict[str, Any]:
    """Mixtral's keys and the experts' width; llama.cpp always renormalises for this family."""
    name = container.metadata["general.architecture"]
    width = container.metadata.get(f"{name}.expert_feed_forward_length")
    fixed = {"moe_intermediate_size": width, "norm_topk_prob": True}
    return mixtral.gguf_config(container) | fixed
