"""GLM-4-9b: Llama with adjacent rotary pairs in half of each head, and biases on q, k and v."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ostro import nn
from ostro.architectures.llama import model as llama


@dataclass(frozen=True, kw_only=True)
class Config(llama.Config):
    """attention_bias concerns q, k and v only."""

    head_dim: int = 128
    rms_norm_eps: float = 1.5625e-07
    attention_bias: bool = True

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        """Half of each head is rotated by default."""
        return super().derive({"partial_rotary_factor": 0.5, **raw}, values)


class Block(llama.Block):
    @staticmethod
    def rope(config: llama.Config) -> nn.Rope:
        shape = config.head_dim, config.max_position_embeddings
        return nn.Rope(config.rope_parameters, *shape, interleaved=True)

    def attention(self, config: Config, layer: int, rope: nn.Rope, **more: Any) -> nn.Module:
        return nn.Attention(config, layer, rope, bias=config.attention_bias, **more)


class Model(llama.Model):
    block = Block
