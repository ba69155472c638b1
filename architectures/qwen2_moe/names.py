"""Qwen2-MoE's names: separate experts on the hub, stacked experts in GGUF files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ostro import Container, ExpertNames, Pair
from ostro.architectures.llama import names as llama
from ostro.architectures.mixtral import names as mixtral
from ostro.architectures.qwen2_moe.model import Config

LAYER = "model.layers.{i}"


@dataclass(frozen=True)
class Row:
    """GGUF files store a matrix of one row as a vector or a matrix."""

    packed: bool = field(default=True, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        return tensor.reshape(1, -1)

    def write(self, tensor: Tensor) -> Tensor:
        return tensor


SHARED = (
    mixtral.GATE,
    Pair("blk.{i}.ffn_gate_inp_shexp", f"{LAYER}.mlp.shared_expert_gate", Row()),
    *(
        Pair(f"blk.{{i}}.ffn_{part}_shexp", f"{LAYER}.mlp.shared_expert.{part}_proj")
        for part in ("gate", "up", "down")
    ),
)
"""The names of the router and the shared expert in GGUF files."""


def names(config: Config) -> ExpertNames:
    """llama.cpp's converter does not reorder the rows of q and k of this family."""
    gguf = (*SHARED, *llama.GGUF)
    return ExpertNames(gguf=gguf, experts=config.num_local_experts, stacks=mixtral.STACKS)


def gguf_config(container: Container) -> dict[str, Any]:
    """Mixtral's keys and the experts' widths; llama.cpp never renormalises for this family."""
    raw, get = mixtral.gguf_config(container), llama.under("qwen2moe", container.metadata)
    return raw | {
        "qkv_bias": raw.pop("attention_bias"),
        "moe_intermediate_size": get("expert_feed_forward_length"),
        "shared_expert_intermediate_size": get("expert_shared_feed_forward_length"),
        "norm_topk_prob": False,
    }
