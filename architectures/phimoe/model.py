"""Phi-3.5-MoE: a mixture of experts that a sparse mixer selects, layer norms, and longrope.

Abdin et al. 2024; the sparse mixer is that of GRIN (Liu et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ostro import Step, nn
from ostro.architectures.mixtral.model import ExpertsConfig
from ostro.architectures.phi import model as phi
from ostro.config import WindowConfig
from ostro.errors import ConfigError

SCALES = ("short_mscale", "long_mscale")


@dataclass(frozen=True, kw_only=True)
class Config(ExpertsConfig, WindowConfig, phi.LayerNormConfig):
    """`router_jitter_noise`: half the relative distance from the best logit at which experts share
    the weight, in inference as well.
    """

    num_key_value_heads: int = 8
    max_position_embeddings: int = 4096 * 32
    rms_norm_eps: float = 1e-5
    num_local_experts: int = 16
    router_jitter_noise: float = 0.01
    attention_bias: bool = False
    lm_head_bias: bool = False
    default_theta: ClassVar[float] = 1000000.0

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], *, allow: Sequence[str] = ()) -> Self:
        return super().from_hf(raw, allow=(*allow, "input_jitter_noise"))

    @property
    def bias(self) -> bool:
        return self.attention_bias

    @property
    def head_bias(self) -> bool:
        return self.lm_head_bias

    def check(self) -> None:
        super().check()
        if self.num_experts_per_tok != 2:
            raise ConfigError(
                f"num_experts_per_tok={self.num_experts_per_tok}: the sparse mixer selects 2"
            )
        if not 0 <= self.router_jitter_noise < math.inf:
            raise ConfigError(f"router_jitter_noise={self.router_jitter_noise} is not in 0..inf")
        rule = self.rope_parameters
        if rule["rope_type"] == "default":
            return
        if rule["rope_type"] != "longrope":
            raise ConfigError(
                f"rope_type={rule['rope_type']!r:.80} is not implemented; only 'default' and "
                "'longrope' are"
            )
        for name in (*SCALES, "original_max_position_embeddings"):
            value = rule.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ConfigError(f"rope_parameters: {name}={value!r:.80} is not a positive number")


class LongRope(nn.Rope):
    """Longrope whose cosines and sines have a factor for short contexts and one for long ones."""

    def finalize(self, context: int, device: torch.device) -> None:
        if self.rule["rope_type"] == "longrope":
            long = context > self.rule["original_max_position_embeddings"]
            self.rule["attention_factor"] = self.rule[SCALES[long]]
        super().finalize(context, device)


class SparseMixer(nn.Linear):
    """Selects two experts for each row: the best one, and the best of the others.

    The weight of each is its share of a softmax over the logits near it, without the expert that
    was selected before.
    """

    def __init__(self, d: int, experts: int, jitter: float) -> None:
        super().__init__(d, experts)
        self.jitter = jitter

    def choose(self, x: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """x [T, d] -> (experts [T, 2] int64, best first, weights [T, 2] float32)."""
        logits = self(x, step).float()
        first, weight = self.pick(logits, logits)
        others = logits.scatter(-1, first, -math.inf)
        second, rest = self.pick(logits, others)
        return torch.cat((first, second), -1), torch.cat((weight, rest), -1)

    def pick(self, logits: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """The best of the candidates [T, experts], and its weight: each [T, 1]."""
        best, chosen = candidates.max(-1, keepdim=True)
        # 0 / 0 is NaN, which is not far: comparisons with it are false.
        far = (best - logits) / torch.maximum(logits.abs(), best) > 2 * self.jitter
        weights = candidates.masked_fill(far, -math.inf).softmax(-1)
        return chosen, weights.gather(-1, chosen)


class SparseMLP(nn.Module):
    """A mixture of experts; the sparse mixer selects the experts of each row."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        d, hidden, experts = config.hidden_size, config.intermediate_size, config.num_local_experts
        self.gate = SparseMixer(d, experts, config.router_jitter_noise)
        self.experts = nn.Experts(experts, d, hidden, config.hidden_act)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        chosen, weights = self.gate.choose(x, step)
        return self.experts(x, chosen, weights, step)


class Block(phi.Block):
    @staticmethod
    def rope(config: phi.LayerNormConfig) -> nn.Rope:
        return LongRope(config.rope_parameters, config.head_dim, config.max_position_embeddings)

    def feed_forward(self, config: Config, layer: int) -> nn.Module:
        return SparseMLP(config)


class Model(phi.TrunkModel):
    block = Block
