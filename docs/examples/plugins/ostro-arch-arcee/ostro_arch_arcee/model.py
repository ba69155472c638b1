"""Arcee: Llama with an ungated feed-forward and a squared ReLU."""

from __future__ import annotations

from dataclasses import dataclass

from ostro.trunks import llama
from torch import Tensor
from torch.nn.functional import relu

from ostro import Fused, Step, errors, nn
from ostro_arch_arcee.naive import KERNELS


@dataclass(frozen=True, kw_only=True)
class Config(llama.Config):
    hidden_act: str = "relu2"

    def check(self) -> None:
        super().check()
        if self.hidden_act != "relu2":
            raise errors.ConfigError(f"hidden_act={self.hidden_act!r}: arcee has relu2 only")


class MLP(nn.Module):
    """down(relu(up(x))^2) (So et al. 2021), with one kernel for the activation on a GPU."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        d, hidden, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.up_proj = nn.Linear(d, hidden, bias=bias)
        self.down_proj = nn.Linear(hidden, d, bias=bias, shard="rowwise")
        self.fused = Fused(KERNELS)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        x = self.up_proj(x, step)
        x = self.fused(x) if self.fused.on else relu(x).square()
        return self.down_proj(x, step)


class Block(llama.Block):
    def feed_forward(self, config: Config, layer: int) -> nn.Module:
        return MLP(config)


class Model(llama.Model):
    block = Block
