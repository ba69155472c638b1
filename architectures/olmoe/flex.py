"""FlexOlmo: OLMoE with norms after attention and experts instead of before (AI2 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ostro import Step, nn
from ostro.architectures.llama import model as llama
from ostro.architectures.mixtral import model as mixtral


@dataclass(frozen=True, kw_only=True)
class Config(mixtral.ExpertsConfig, llama.Config):
    num_local_experts: int = 7
    num_experts_per_tok: int = 5
    norm_topk_prob: bool = False

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        return super().derive({"rope_theta": 500000.0, **raw}, values)


class Block(llama.Block):
    """A block that norms the outputs of attention and experts, before their addition."""

    def __init__(self, config: Config, layer: int, rope: nn.Rope) -> None:
        super().__init__(config, layer, rope)
        del self.input_layernorm
        self.post_feedforward_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def attention(self, config: Config, layer: int, rope: nn.Rope, **more: Any) -> nn.Module:
        return super().attention(config, layer, rope, qk_norm="all", **more)

    def feed_forward(self, config: Config, layer: int) -> nn.Module:
        hidden = config.intermediate_size
        return mixtral.SparseMLP(config, hidden, renormalise=config.norm_topk_prob)

    def forward(self, x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, Tensor]:
        x = x if residual is None else x + residual
        x = x + self.post_attention_layernorm(self.self_attn(x, step))[0]
        return self.post_feedforward_layernorm(self.mlp(x, step))[0], x


class Model(llama.Model):
    block = Block
