"""Qwen3: Llama with a norm on every query and key head."""

from __future__ import annotations

from dataclasses import dataclass

from ostro import nn
from ostro.architectures.llama import model as llama
from ostro.architectures.qwen3.naive import KERNELS
from ostro.config import WindowConfig


@dataclass(frozen=True, kw_only=True)
class Config(WindowConfig, llama.Config):
    head_dim: int = 128
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28

    def slides(self, layer: int) -> bool:
        return self.use_sliding_window and layer >= self.max_window_layers


class Block(llama.Block):
    def attention(self, config: Config, layer: int, rope: nn.Rope) -> nn.Module:
        bias, window = config.attention_bias, config.window(layer)
        return nn.Attention(
            config,
            layer,
            rope,
            bias=bias,
            out_bias=bias,
            qk_norm="head",
            window=window,
            fused=KERNELS,
        )


class Model(llama.Model):
    block = Block
