"""Qwen3-VL-MoE: Qwen3-VL with a mixture of experts in some or all layers (Qwen team 2025).

Reference class Qwen3VLMoeForConditionalGeneration of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ostro import nn
from ostro.architectures.mixtral import model as mixtral
from ostro.architectures.qwen2_5_vl import config as qwen2_5_vl
from ostro.architectures.qwen2_5_vl.model import Sighted
from ostro.architectures.qwen3 import model as qwen3
from ostro.architectures.qwen3_vl import config as configs
from ostro.architectures.qwen3_vl import model as qwen3_vl
from ostro.architectures.qwen3_vl.vision import Tower
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Text(qwen2_5_vl.RopeConfig, mixtral.SparseConfig, qwen3.Config):
    """The text config. The reference renormalises the weights of experts in any case."""

    default_sections: ClassVar[tuple[int, ...]] = (24, 20, 20)
    default_theta: ClassVar[float] = 500000.0
    head_dim: int = 0
    num_local_experts: int = 60
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 1408
    norm_topk_prob: bool = True

    def check(self) -> None:
        super().check()
        if not self.norm_topk_prob:
            raise ConfigError("text_config: norm_topk_prob=false is not implemented")


@dataclass(frozen=True, kw_only=True)
class Config(configs.SightedConfig):
    text: Text


class Block(qwen3.Block):
    @staticmethod
    def rope(config: Text) -> nn.Rope:
        return qwen3_vl.interleaved_rope(config)

    def feed_forward(self, config: Text, layer: int) -> nn.Module:
        if not config.sparse(layer):
            return super().feed_forward(config, layer)
        return mixtral.SparseMLP(config, config.moe_intermediate_size)


class Model(qwen3_vl.DeepFeatures, Sighted, qwen3.Model):
    block = Block

    def __init__(self, config: Config) -> None:
        super().__init__(config.text)
        self.visual = Tower(config.vision)
