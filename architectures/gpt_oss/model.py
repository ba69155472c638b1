"""gpt-oss: experts with a clamped activation, attention sinks, a sliding window in every other
layer, biases on all linears (OpenAI 2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ostro import nn
from ostro.architectures.llama import model as llama
from ostro.architectures.mixtral import model as mixtral
from ostro.config import WindowConfig

ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""The rope of files that state none."""


@dataclass(frozen=True, kw_only=True)
class Config(mixtral.ExpertsConfig, WindowConfig, llama.Config):
    head_dim: int = 64
    num_local_experts: int = 128
    num_experts_per_tok: int = 4
    attention_bias: bool = True
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = 128
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    default_theta: ClassVar[float] = 150000.0

    def slides(self, layer: int) -> bool:
        return layer % 2 == 0

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        stated = any(raw.get(key) for key in ("rope_parameters", "rope_scaling"))
        return super().derive(raw if stated else {**raw, "rope_parameters": ROPE}, values)


class Experts(nn.Experts):
    def __init__(self, config: Config, hidden: int) -> None:
        experts, d = config.num_local_experts, config.hidden_size
        super().__init__(experts, d, hidden, config.hidden_act, bias=True)
        self.alpha, self.limit = config.swiglu_alpha, config.swiglu_limit

    def activate(self, gate_up: Tensor) -> Tensor:
        """(up + 1) * gate * sigmoid(alpha * gate), gate and up clamped (GptOssExperts)."""
        gate, up = gate_up.float().chunk(2, -1)
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return ((up + 1) * gate * (self.alpha * gate).sigmoid()).to(gate_up.dtype)


class SparseMLP(mixtral.SparseMLP):
    def mixture(self, config: Config, hidden: int) -> nn.Experts:
        return Experts(config, hidden)


class Block(llama.Block):
    def attention(self, config: Config, layer: int, rope: nn.Rope) -> nn.Module:
        return super().attention(config, layer, rope, sinks=True)

    def feed_forward(self, config: Config, layer: int) -> nn.Module:
        return SparseMLP(config, config.intermediate_size, bias=True)


class Model(llama.Model):
    block = Block
