"""Qwen2-MoE: Qwen2 with routed experts and a gated shared expert instead of the MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ostro import Step, nn
from ostro.architectures.mixtral import model as mixtral
from ostro.architectures.qwen2 import model as qwen2
from ostro.config import check_sizes


@dataclass(frozen=True, kw_only=True)
class Config(mixtral.SparseConfig, qwen2.Config):
    num_local_experts: int = 60
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 1408
    shared_expert_intermediate_size: int = 5632
    qkv_bias: bool = True

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        """transformers 5 writes a window of 0 positions if use_sliding_window is false."""
        values = super().derive(raw, values)
        if not values.get("use_sliding_window", cls.use_sliding_window):
            values["sliding_window"] = None
        return values

    def check(self) -> None:
        super().check()
        check_sizes(self, "shared_expert_intermediate_size")

    def slides(self, layer: int) -> bool:
        """Every second layer of the first max_window_layers, from layer 0 on, has a window."""
        return self.use_sliding_window and layer % 2 == 0 and layer < self.max_window_layers


class SharedMLP(mixtral.SparseMLP):
    """Routed experts, and a gated shared expert of width `shared` for all rows."""

    def __init__(self, config: mixtral.SparseConfig, shared: int) -> None:
        super().__init__(config, config.moe_intermediate_size, renormalise=config.norm_topk_prob)
        d = config.hidden_size
        self.shared_expert = nn.GatedMLP(d, shared, config.hidden_act)
        self.shared_expert_gate = nn.Linear(d, 1)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        gate = self.shared_expert_gate(x, step).sigmoid()
        return super().forward(x, step) + gate * self.shared_expert(x, step)


class Block(qwen2.Block):
    def attention(self, config: Config, layer: int, rope: nn.Rope) -> nn.Module:
        window = config.window(layer)
        return nn.Attention(config, layer, rope, bias=config.qkv_bias, window=window)

    def feed_forward(self, config: Config, layer: int) -> nn.Module:
        if config.sparse(layer):
            return SharedMLP(config, config.shared_expert_intermediate_size)
        return super().feed_forward(config, layer)


class Model(qwen2.Model):
    block = Block
