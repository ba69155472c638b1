"""Gemma 3: Gemma 2 with q/k norms instead of softcapping, local and global rope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ostro import nn
from ostro.architectures.gemma2 import model as gemma2
from ostro.config import check_sizes

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, kw_only=True)
class Config(gemma2.Config):
    max_position_embeddings: int = 131072
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    sliding_window_pattern: int = 6
    default_theta: ClassVar[float] = 1000000.0

    def check(self) -> None:
        super().check()
        check_sizes(self, "sliding_window_pattern")

    def slides(self, layer: int) -> bool:
        return (layer + 1) % self.sliding_window_pattern > 0

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        """One rope per layer type, also from files with a separate local base."""
        values = super().derive(raw, values)
        rule, local = values["rope_parameters"], raw.get("rope_local_base_freq", 10000.0)
        if FULL not in rule:
            near = {**rule, "rope_type": "default", "rope_theta": local}
            return values | {"rope_parameters": {SLIDING: near, FULL: rule}}
        stated = (raw.get("rope_parameters") or {}).get(SLIDING)
        if isinstance(stated, Mapping) and "rope_theta" not in stated:
            near = {**rule[SLIDING], "rope_theta": local}
            return values | {"rope_parameters": {**rule, SLIDING: near}}
        return values


class Block(gemma2.Block):
    def attention(self, config: Config, layer: int, rope: nn.Rope) -> nn.Module:
        return super().attention(config, layer, rope, qk_norm="head")


class Decoder(gemma2.Decoder):
    block = Block

    def ropes(self, config: Config) -> Sequence[nn.Rope]:
        shape = config.head_dim, config.max_position_embeddings
        rules = (config.rope_rule(kind) for kind in (SLIDING, FULL))
        local, far = (nn.Rope(rule, *shape) for rule in rules)
        return [local if config.window(i) else far for i in range(config.num_hidden_layers)]


class Model(gemma2.Model):
    decoder = Decoder
