"""FlexOlmo: OLMo 2 with experts (AI2 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ostro import nn
from ostro.architectures.mixtral import model as mixtral
from ostro.architectures.olmo2 import model as olmo2


@dataclass(frozen=True, kw_only=True)
class Config(mixtral.ExpertsConfig, olmo2.Config):
    num_local_experts: int = 7
    num_experts_per_tok: int = 5
    norm_topk_prob: bool = False
    default_theta: ClassVar[float] = 500000.0


class Block(olmo2.Block):
    def feed_forward(self, config: Config, layer: int) -> nn.Module:
        hidden = config.intermediate_size
        return mixtral.SparseMLP(config, hidden, renormalise=config.norm_topk_prob)


class Model(olmo2.Model):
    block = Block
