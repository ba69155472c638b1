"""ERNIE 4.5: Llama with interleaved rotary pairs, and biases on all linears of a layer or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ostro import nn
from ostro.architectures.llama import model as llama


@dataclass(frozen=True, kw_only=True)
class Config(llama.Config):
    """use_bias sets attention_bias and mlp_bias, which config.json files do not contain."""

    head_dim: int = 128
    tie_word_embeddings: bool = True
    use_bias: bool = False
    default_theta: ClassVar[float] = 500000.0

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values = super().derive(raw, values)
        biases = dict.fromkeys(("attention_bias", "mlp_bias"), values.get("use_bias", False))
        return values | biases


class Block(llama.Block):
    @staticmethod
    def rope(config: llama.Config) -> nn.Rope:
        shape = config.head_dim, config.max_position_embeddings
        return nn.Rope(config.rope_parameters, *shape, interleaved=True)


class Model(llama.Model):
    block = Block
