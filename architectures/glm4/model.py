"""GLM-4-0414: Llama with norms before and after both branches, and half of each head rotated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ostro import Step, nn
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
    """post_attention_layernorm is the norm before the MLP, as in Llama."""

    def __init__(self, config: Config, layer: int, rope: nn.Rope) -> None:
        super().__init__(config, layer, rope)
        d, eps = config.hidden_size, config.rms_norm_eps
        self.post_self_attn_layernorm = nn.RMSNorm(d, eps)
        self.post_mlp_layernorm = nn.RMSNorm(d, eps)

    @staticmethod
    def rope(config: llama.Config) -> nn.Rope:
        shape = config.head_dim, config.max_position_embeddings
        return nn.Rope(config.rope_parameters, *shape, interleaved=True)

    def attention(self, config: Config, layer: int, rope: nn.Rope, **more: Any) -> nn.Module:
        return nn.Attention(config, layer, rope, bias=config.attention_bias, **more)

    def forward(self, x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, Tensor]:
        x, residual = self.input_layernorm(x, residual)
        x = self.post_self_attn_layernorm(self.self_attn(x, step))[0]
        x, residual = self.post_attention_layernorm(x, residual)
        return self.post_mlp_layernorm(self.mlp(x, step))[0], residual


class Model(llama.Model):
    block = Block
