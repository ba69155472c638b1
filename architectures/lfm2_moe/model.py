"""LFM2-MoE: LFM2 with sigmoid-routed experts after the first layers (Liquid AI 2025)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from ostro import Step, nn
from ostro.architectures.lfm2 import model as lfm2
from ostro.architectures.mixtral import model as mixtral
from ostro.config import check_sizes
from ostro.errors import ConfigError
from ostro.ops import RoutingRule


@dataclass(frozen=True, kw_only=True)
class Config(lfm2.Config, mixtral.ExpertsConfig):
    """The first num_dense_layers layers have no experts. use_expert_bias: a bias affects the
    selection of experts, not their weights.
    """

    intermediate_size: int = 7168
    moe_intermediate_size: int = 1792
    num_dense_layers: int = 2
    num_local_experts: int = 32
    num_experts_per_tok: int = 4
    use_expert_bias: bool = True
    routed_scaling_factor: float = 1.0
    norm_topk_prob: bool = True

    def check(self) -> None:
        super().check()
        check_sizes(self, "moe_intermediate_size")
        if not math.isfinite(self.routed_scaling_factor):
            raise ConfigError(f"routed_scaling_factor={self.routed_scaling_factor} is not finite")

    @property
    def feed_forward_size(self) -> int:
        """The width of dense layers, which this family does not adjust."""
        return self.intermediate_size


class SparseMLP(nn.Module):
    """Routed experts; a bias may affect their selection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        d, experts = config.hidden_size, config.num_local_experts
        rule = RoutingRule(
            config.num_experts_per_tok,
            renormalise=config.norm_topk_prob,
            sigmoid=True,
            factor=config.routed_scaling_factor,
        )
        self.gate = nn.Float32Router(d, experts, rule, correction_bias=config.use_expert_bias)
        self.experts = nn.Experts(experts, d, config.moe_intermediate_size, "silu")

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return self.experts(x, *self.gate.choose(x, step), step)


class Block(lfm2.Block):
    def mlp(self, config: Config, layer: int) -> nn.Module:
        return super().mlp(config, layer) if layer < config.num_dense_layers else SparseMLP(config)


class Model(lfm2.Model):
    block = Block
