"""Qwen2: Llama with biases on q, k and v, and windows on the later layers if so configured."""

from __future__ import annotations

from dataclasses import dataclass

from ostro import nn
from ostro.architectures.llama import model as llama
from ostro.config import WindowConfig


@dataclass(frozen=True, kw_only=True)
class Config(WindowConfig, llama.Config):
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28

    def slides(self, layer: int) -> bool:
        return self.use_sliding_window and layer >= self.max_window_layers


class Block(llama.Block):
    def attention(self, config: Config, layer: int, rope: nn.Rope) -> nn.Module:
        return nn.Attention(config, layer, rope, bias=True, window=config.window(layer))


class Model(llama.Model):
    block = Block
