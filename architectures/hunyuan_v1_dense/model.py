"""Hunyuan (dense): Llama with norms on q and k after the rotation, and a stretched rope base."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ostro import Step, nn
from ostro.architectures.llama import model as llama
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config(llama.Config):
    """use_qk_norm and use_cla (keys and values shared by layers) are stated by published files."""

    use_qk_norm: bool = True
    use_cla: bool = False

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values = super().derive(raw, values)
        rule = stretched(values["rope_parameters"], values.get("head_dim", 0))
        return values | {"rope_parameters": rule}

    def check(self) -> None:
        super().check()
        if not self.use_qk_norm or self.use_cla:
            raise ConfigError(
                f"use_qk_norm={self.use_qk_norm} with use_cla={self.use_cla} is not implemented; "
                "only use_qk_norm=True with use_cla=False is"
            )


def stretched(rule: Mapping[str, Any], d: int) -> Mapping[str, Any]:
    """The rule with "alpha" applied to the base: theta * alpha ** (d / (d - 2)).

    Files call it "dynamic", although it does not depend on the context. Raises ConfigError if alpha
    is out of range.
    """
    alpha = rule.get("alpha")
    if rule.get("rope_type") != "dynamic" or not alpha:
        return rule
    if not isinstance(alpha, int | float) or not 0 < alpha < 1e6 or d <= 2:
        raise ConfigError(
            f"rope_parameters: alpha={alpha!r:.80} with head_dim={d} is not a number within 0..1e6 "
            "with a head_dim above 2"
        )
    theta = rule["rope_theta"] * math.pow(alpha, d / (d - 2))
    kept = {key: value for key, value in rule.items() if key != "alpha"}
    return {**kept, "rope_type": "default", "rope_theta": theta}


class Attention(nn.Attention):
    """Attention that norms q and k after the rotation."""

    def rotate_and_write(self, q: Tensor, k: Tensor, v: Tensor, step: Step) -> Tensor:
        assert self.rope is not None
        q, k = self.rope(q, k, step.positions)
        q = q if self.q_norm is None else self.q_norm(q)[0]
        k = k if self.k_norm is None else self.k_norm(k)[0]
        pages = step.caches[self.layer]
        self.write(k, v, pages.k, pages.v, pages.batch.slots)
        return q


class Block(llama.Block):
    def attention(self, config: Config, layer: int, rope: nn.Rope, **more: Any) -> nn.Module:
        bias = config.attention_bias
        return Attention(config, layer, rope, bias=bias, out_bias=bias, qk_norm="head", **more)


class Model(llama.Model):
    block = Block
