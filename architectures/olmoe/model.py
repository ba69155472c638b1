"""OLMoE: Llama with experts, with norms over all heads of q and k (Muennighoff et al. 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from ostro import Step, nn
from ostro.architectures.llama import model as llama
from ostro.architectures.mixtral import model as mixtral
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config(mixtral.ExpertsConfig, llama.Config):
    """clip_qkv: clamp q, k and v to -clip_qkv..clip_qkv; None = do not."""

    rms_norm_eps: float = 1e-5
    num_local_experts: int = 64
    num_experts_per_tok: int = 8
    norm_topk_prob: bool = False
    clip_qkv: float | None = None

    def check(self) -> None:
        super().check()
        if self.clip_qkv is not None and not 0 < self.clip_qkv < math.inf:
            raise ConfigError(f"clip_qkv={self.clip_qkv} is not a positive number")


class ClippedNorm(nn.RMSNorm):
    """An RMS norm whose result is clamped to -limit..limit."""

    def __init__(self, d: int, eps: float, limit: float) -> None:
        super().__init__(d, eps)
        self.limit = limit

    def forward(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y, total = super().forward(x, residual)
        return y.clamp(-self.limit, self.limit), total


class ClippedAttention(nn.Attention):
    """Attention with norms over all heads of q and k, whose q, k and v are clamped."""

    def __init__(self, config: Config, layer: int, rope: nn.Rope, limit: float) -> None:
        bias, eps = config.attention_bias, config.rms_norm_eps
        super().__init__(config, layer, rope, bias=bias, out_bias=bias, qk_norm="all")
        self.q_norm = ClippedNorm(self.heads * self.head_dim, eps, limit)
        self.k_norm = ClippedNorm(self.kv_heads * self.head_dim, eps, limit)
        self.limit = limit

    def rotate_and_write(self, q: Tensor, k: Tensor, v: Tensor, step: Step) -> Tensor:
        return super().rotate_and_write(q, k, v.clamp(-self.limit, self.limit), step)


class Block(llama.Block):
    def attention(self, config: Config, layer: int, rope: nn.Rope) -> nn.Module:
        if config.clip_qkv is None:
            return super().attention(config, layer, rope, qk_norm="all")
        return ClippedAttention(config, layer, rope, config.clip_qkv)

    def feed_forward(self, config: Config, layer: int) -> nn.Module:
        hidden = config.intermediate_size
        return mixtral.SparseMLP(config, hidden, renormalise=config.norm_topk_prob)


class Model(llama.Model):
    block = Block
