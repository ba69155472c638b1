"""Granite: Llama with factors on embeddings, scores, residual branches and logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ostro import Step, nn
from ostro.architectures.llama import model as llama
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config(llama.Config):
    embedding_multiplier: float = 1.0
    attention_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0

    def check(self) -> None:
        super().check()
        for name in ("embedding", "attention", "residual"):
            if not math.isfinite(value := getattr(self, f"{name}_multiplier")):
                raise ConfigError(f"{name}_multiplier={value} is not finite")
        if not (math.isfinite(self.logits_scaling) and self.logits_scaling > 0):
            raise ConfigError(f"logits_scaling={self.logits_scaling} is not a positive number")


class Block(llama.Block):
    def __init__(self, config: Config, layer: int, rope: nn.Rope) -> None:
        super().__init__(config, layer, rope)
        self.multiplier = config.residual_multiplier

    def attention(self, config: Config, layer: int, rope: nn.Rope, **more: Any) -> nn.Module:
        return super().attention(config, layer, rope, scale=config.attention_multiplier, **more)

    def forward(self, x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, Tensor]:
        x, residual = self.input_layernorm(x, residual)
        x = self.self_attn(x, step) * self.multiplier
        x, residual = self.post_attention_layernorm(x, residual)
        return self.mlp(x, step) * self.multiplier, residual


class Model(llama.Model):
    block = Block

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embedding_multiplier = config.embedding_multiplier
        self.logits_scaling = config.logits_scaling

    def embed(self, step: Step) -> Tensor:
        return super().embed(step) * self.embedding_multiplier

    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        return super().logits(hidden, step) / self.logits_scaling
