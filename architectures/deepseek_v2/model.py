"""DeepSeek-V2: multi-head latent attention, and routed and shared experts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ostro import Step, nn
from ostro.architectures.llama import model as llama
from ostro.config import MAX_EXPERTS, TextConfig, check_sizes
from ostro.errors import ConfigError
from ostro.ops import RoutingRule


@dataclass(frozen=True, kw_only=True)
class RoutedConfig(TextConfig):
    """The fields of families with DeepSeek's routed and shared experts."""

    moe_intermediate_size: int
    n_routed_experts: int
    num_experts_per_tok: int
    n_shared_experts: int = 2
    first_k_dense_replace: int = 0
    routed_scaling_factor: float = 1.0
    n_group: int | None = None
    topk_group: int | None = None
    norm_topk_prob: bool = False

    def check(self) -> None:
        super().check()
        check_sizes(self, "moe_intermediate_size n_shared_experts")
        experts, top = self.n_routed_experts, self.num_experts_per_tok
        if not 0 < experts <= MAX_EXPERTS:
            raise ConfigError(f"n_routed_experts={experts} is not within 1..{MAX_EXPERTS}")
        if not 0 < self.groups <= experts or experts % self.groups:
            raise ConfigError(
                f"n_routed_experts={experts} is not a multiple of n_group={self.n_group}"
            )
        best = self.best_groups
        if not 0 < best <= self.groups:
            raise ConfigError(f"topk_group={best} is not within 1..n_group={self.groups}")
        candidates = best * (experts // self.groups)
        if not 0 < top <= candidates:
            raise ConfigError(
                f"num_experts_per_tok={top} is not within 1..{candidates}, the experts of "
                f"topk_group={best} of n_group={self.groups} groups"
            )
        if not math.isfinite(self.routed_scaling_factor):
            raise ConfigError(f"routed_scaling_factor={self.routed_scaling_factor} is not finite")

    @property
    def groups(self) -> int:
        """The number of expert groups, of which `best_groups` are candidates; 1 = no groups."""
        return self.n_group or 1

    @property
    def best_groups(self) -> int:
        return 1 if self.groups == 1 else self.topk_group or 1


@dataclass(frozen=True, kw_only=True)
class Config(RoutedConfig, llama.Config):
    """The fields of transformers' DeepseekV2Config.

    The published code has two more settings: the number of layers from one with routed experts to
    the next, and the function of the router's scores.
    """

    topk_method: str = "greedy"
    q_lora_rank: int | None = 1536
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128
    qk_head_dim: int = 0
    unimplemented: ClassVar[Mapping[str, Any]] = {
        **llama.Config.unimplemented,
        "moe_layer_freq": 1,
        "scoring_func": "softmax",
    }

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values = super().derive(raw, values)
        return values | {"head_dim": values.get("qk_rope_head_dim", 64)}

    def check(self) -> None:
        super().check()
        if self.topk_method not in ("greedy", "group_limited_greedy", "noaux_tc"):
            raise ConfigError(f"topk_method={self.topk_method!r} is not implemented")
        if self.qk_head_dim not in (0, self.qk_nope_head_dim + self.qk_rope_head_dim):
            raise ConfigError(
                f"qk_head_dim={self.qk_head_dim} is not qk_nope_head_dim={self.qk_nope_head_dim} + "
                f"qk_rope_head_dim={self.qk_rope_head_dim}"
            )
        rule = self.rope_parameters
        for name, value in (("factor", rule.get("factor", 1)), ("mscale_all_dim", self.mscale)):
            if not isinstance(value, int | float) or not 0 <= value <= 1e12:
                raise ConfigError(f"rope_parameters: {name}={value!r:.80} is not within 0..1e12")
        self.check_router()

    def check_router(self) -> None:
        if self.norm_topk_prob:
            raise ConfigError("norm_topk_prob=true is not implemented")

    @property
    def groups(self) -> int:
        return 1 if self.topk_method == "greedy" else super().groups

    @property
    def scale(self) -> float:
        """The scale of the scores, with YaRN's factor mscale_all_dim."""
        rule, scale = self.rope_parameters, (self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5
        if rule.get("rope_type", "default") != "default":
            scale *= (0.1 * self.mscale * math.log(max(rule.get("factor", 1), 1)) + 1) ** 2
        return scale

    @property
    def mscale(self) -> Any:
        return self.rope_parameters.get("mscale_all_dim") or 0


def rule(config: RoutedConfig) -> RoutingRule:
    """Softmax over all experts; the top k of the best groups, without renormalisation."""
    return RoutingRule(
        config.num_experts_per_tok,
        groups=config.groups,
        best_groups=config.best_groups,
        factor=config.routed_scaling_factor,
    )


def sigmoid_router(config: RoutedConfig) -> nn.Float32Router:
    """Sigmoid scores; the bias affects the selection of experts, not their weights (V3)."""
    found = rule(config)._replace(renormalise=config.norm_topk_prob, sigmoid=True)
    d, experts = config.hidden_size, config.n_routed_experts
    return nn.Float32Router(d, experts, found, correction_bias=True)


class Mixture(nn.Module):
    """Routed experts, and shared experts for every token."""

    def __init__(self, config: RoutedConfig, router: nn.Float32Router) -> None:
        super().__init__()
        d, hidden, act = config.hidden_size, config.moe_intermediate_size, config.hidden_act
        self.gate = router
        self.experts = nn.Experts(config.n_routed_experts, d, hidden, act)
        self.shared_experts = nn.GatedMLP(d, hidden * config.n_shared_experts, act)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return self.experts(x, *self.gate.choose(x, step), step) + self.shared_experts(x, step)


class Block(llama.Block):
    @staticmethod
    def router(config: Config) -> nn.Float32Router:
        return nn.Float32Router(config.hidden_size, config.n_routed_experts, rule(config))

    @staticmethod
    def rope(config: Config) -> nn.Rope:
        rule, context = config.rope_parameters, config.max_position_embeddings
        return nn.Rope(rule, config.qk_rope_head_dim, context, interleaved=True)

    def attention(self, config: Config, layer: int, rope: nn.Rope) -> nn.Module:
        return nn.LatentAttention(
            config.hidden_size,
            config.num_attention_heads,
            layer,
            rope,
            q_latent=config.q_lora_rank or 0,
            latent=config.kv_lora_rank,
            nope_dim=config.qk_nope_head_dim,
            rope_dim=config.qk_rope_head_dim,
            value_dim=config.v_head_dim,
            eps=config.rms_norm_eps,
            scale=config.scale,
            bias=config.attention_bias,
        )

    def feed_forward(self, config: Config, layer: int) -> nn.Module:
        if layer < config.first_k_dense_replace:
            return super().feed_forward(config, layer)
        return Mixture(config, self.router(config))


class Model(llama.Model):
    block = Block
