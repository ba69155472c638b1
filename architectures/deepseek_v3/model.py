"""DeepSeek-V3: V2 with sigmoid routing and a load-balancing bias (2024)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import nn
from ostro.architectures.deepseek_v2 import model as v2


@dataclass(frozen=True, kw_only=True)
class Config(v2.Config):
    routed_scaling_factor: float = 2.5
    n_shared_experts: int = 1
    first_k_dense_replace: int = 3
    n_group: int | None = 8
    topk_group: int | None = 4
    topk_method: str = "noaux_tc"
    norm_topk_prob: bool = True
    rope_interleave: bool = True

    def check_router(self) -> None:
        """V3 implements norm_topk_prob."""


class Router(v2.Router):
    """Sigmoid scores; the bias affects the selection of experts, not their weights."""

    def __init__(self, config: v2.Config) -> None:
        super().__init__(config)
        bias = torch.zeros(config.n_routed_experts)
        self.e_score_correction_bias = nn.Parameter(bias, requires_grad=False)
        self.sums_to_one = config.norm_topk_prob

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.linear(x.float(), self.weight.float())
        rule = self.rule()._replace(renormalise=self.sums_to_one, sigmoid=True)
        return self.route(logits, rule, self.e_score_correction_bias)


class Block(v2.Block):
    @staticmethod
    def router(config: Config) -> v2.Router:
        return Router(config)

    @staticmethod
    def rope(config: Config) -> nn.Rope:
        """The rope of V2, with pairs as in `rope_interleave`."""
        rope = v2.Block.rope(config)
        rope.interleaved = config.rope_interleave
        return rope


class Model(v2.Model):
    block = Block
