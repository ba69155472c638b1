"""MiniMax-M2: Mixtral with sigmoid routing, norms over all heads of q and k, and a rotation of
part of each head (MiniMax 2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ostro import Step, nn
from ostro.architectures.llama import model as llama
from ostro.architectures.mixtral import model as mixtral
from ostro.errors import ConfigError
from ostro.ops import RoutingRule

MAX_MTP_MODULES = 64
IMPLEMENTED = {
    "scoring_func": "sigmoid",
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "use_routing_bias": True,
    "shared_intermediate_size": 0,
}
"""Fields of published configs whose other values are not implemented."""


@dataclass(frozen=True, kw_only=True)
class Config(mixtral.ExpertsConfig, llama.Config):
    """rotary_dim: the rotated dimensions of each head. attn_type_list: 1 for a layer of full
    attention. num_mtp_modules: multi-token prediction layers, which are not loaded.
    """

    num_key_value_heads: int = 8
    head_dim: int = 128
    num_local_experts: int = 256
    num_experts_per_tok: int = 8
    rotary_dim: int | None = None
    attn_type_list: tuple[int, ...] | None = None
    num_mtp_modules: int = 0
    scoring_func: str = "sigmoid"
    use_qk_norm: bool = True
    qk_norm_type: str = "per_layer"
    use_routing_bias: bool = True
    shared_intermediate_size: int = 0
    default_theta: ClassVar[float] = 5000000.0

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        rotated, whole = values.get("rotary_dim"), values.get("head_dim", cls.head_dim)
        factor = {"partial_rotary_factor": rotated / whole} if rotated and whole else {}
        return super().derive({**factor, **raw}, values)

    def check(self) -> None:
        super().check()
        rotated = self.rotary_dim
        if rotated is not None and (not 0 < rotated <= self.head_dim or rotated % 2):
            raise ConfigError(
                f"rotary_dim={rotated} is not an even number within 2..head_dim={self.head_dim}"
            )
        for name, value in IMPLEMENTED.items():
            if getattr(self, name) != value:
                raise ConfigError(f"{name}={getattr(self, name)!r:.80} is not implemented")
        if any(kind != 1 for kind in self.attn_type_list or ()):
            raise ConfigError("attn_type_list has layers without full attention (1)")
        if not 0 <= self.num_mtp_modules <= MAX_MTP_MODULES:
            raise ConfigError(
                f"num_mtp_modules={self.num_mtp_modules} is not within 0..{MAX_MTP_MODULES}"
            )


class SparseMLP(nn.Module):
    """Routed experts; the bias affects their selection, not their weights."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        d, experts, hidden = config.hidden_size, config.num_local_experts, config.intermediate_size
        rule = RoutingRule(config.num_experts_per_tok, renormalise=True, sigmoid=True)
        self.gate = nn.Float32Router(d, experts, rule, correction_bias=True)
        self.experts = nn.Experts(experts, d, hidden, config.hidden_act)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return self.experts(x, *self.gate.choose(x, step), step)


class Block(llama.Block):
    def attention(self, config: Config, layer: int, rope: nn.Rope) -> nn.Module:
        return nn.Attention(config, layer, rope, qk_norm="all")

    def feed_forward(self, config: Config, layer: int) -> nn.Module:
        return SparseMLP(config)


class Model(llama.Model):
    block = Block
