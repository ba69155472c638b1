"""Seed-OSS: Llama with a switch for the biases of q, k and v, and one for the output's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ostro import nn
from ostro.architectures.llama import model as llama


@dataclass(frozen=True, kw_only=True)
class Config(llama.Config):
    """attention_bias concerns q, k and v only; residual_dropout has no effect on inference."""

    head_dim: int = 128
    attention_bias: bool = True
    attention_out_bias: bool = False
    residual_dropout: float = 0.1


class Block(llama.Block):
    def attention(self, config: Config, layer: int, rope: nn.Rope, **more: Any) -> nn.Module:
        bias, out_bias = config.attention_bias, config.attention_out_bias
        return nn.Attention(config, layer, rope, bias=bias, out_bias=out_bias, **more)


class Model(llama.Model):
    block = Block
