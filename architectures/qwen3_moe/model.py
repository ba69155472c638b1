"""Qwen3-MoE: Qwen3 with a mixture of experts instead of the MLP in some or all layers."""

from __future__ import annotations

from dataclasses import dataclass

from ostro import nn
from ostro.architectures.mixtral import model as mixtral
from ostro.architectures.qwen3 import model as qwen3


@dataclass(frozen=True, kw_only=True)
class Config(mixtral.SparseConfig, qwen3.Config):
    head_dim: int = 0
    num_local_experts: int = 128
    num_experts_per_tok: int = 8

    def slides(self, layer: int) -> bool:
        return self.use_sliding_window


class Block(qwen3.Block):
    def feed_forward(self, config: Config, layer: int) -> nn.Module:
        if not config.sparse(layer):
            return super().feed_forward(config, layer)
        hidden = config.moe_intermediate_size
        return mixtral.SparseMLP(config, hidden, renormalise=config.norm_topk_prob)


class Model(qwen3.Model):
    block = Block
