"""InternLM 3: Llama with separate switches for the biases of q, k, v and of all other linears.

Its GGUF files have the architecture "llama".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ostro import nn
from ostro.architectures.llama import model as llama


@dataclass(frozen=True, kw_only=True)
class Config(llama.Config):
    """The published names of attention_bias (q, k, v) and mlp_bias are qkv_bias and bias."""

    qkv_bias: bool | None = None
    bias: bool | None = None

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values = super().derive(raw, values)
        for published, field in (("qkv_bias", "attention_bias"), ("bias", "mlp_bias")):
            if values.get(published) is not None:
                values[field] = values[published]
        return values


class Block(llama.Block):
    def attention(self, config: Config, layer: int, rope: nn.Rope, **more: Any) -> nn.Module:
        bias, out_bias = config.attention_bias, config.mlp_bias
        return nn.Attention(config, layer, rope, bias=bias, out_bias=out_bias, **more)


class Model(llama.Model):
    block = Block
