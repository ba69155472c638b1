"""Qwen3: Llama with a norm on every query and key head."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ostro import Fused, Names, Step, nn
from ostro.architectures.llama import model as llama
from ostro.architectures.llama.names import GGUF
from ostro.architectures.qwen3.naive import KERNELS
from ostro.core.config import WindowConfig


@dataclass(frozen=True, kw_only=True)
class Config(WindowConfig, llama.Config):
    head_dim: int = 128
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28

    def slides(self, layer: int) -> bool:
        return self.use_sliding_window and layer >= self.max_window_layers


class Attention(nn.Attention):
    """Where a kernel for it fits, norms, rotation and cache write are one."""

    def __init__(self, config: Config, layer: int, rope: nn.Rope) -> None:
        bias, window = config.attention_bias, config.window(layer)
        super().__init__(config, layer, rope, bias=bias, out_bias=bias, qk_norm=True, window=window)
        whole = config.rope_parameters.get("partial_rotary_factor", 1.0) == 1.0
        self.fused = Fused(KERNELS, head_dim=config.head_dim, whole=whole)

    def place(self, q: Tensor, k: Tensor, v: Tensor, step: Step) -> Tensor:
        pages = step.caches[self.layer]
        if not self.fused.on or not isinstance(pages.k, Tensor):  # pages of eight bits have scales
            return super().place(q, k, v, step)
        norms, table = (self.q_norm.weight, self.k_norm.weight), self.rope.table
        return self.fused(q, k, v, *norms, self.q_norm.eps, step.positions, table, pages)


class Block(llama.Block):
    def attention(self, config: Config, layer: int, rope: nn.Rope) -> nn.Module:
        return Attention(config, layer, rope)


class Model(llama.Model):
    block = Block


def names(config: Config) -> Names:
    """The converter leaves q and k of this family as they are."""
    return Names(gguf=GGUF)
