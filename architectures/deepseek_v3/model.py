"""DeepSeek-V3: V2 with sigmoid routing and a load-balancing bias (2024)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ostro import nn
from ostro.architectures.deepseek_v2 import model as v2


@dataclass(frozen=True, kw_only=True)
class Config(v2.Config):
    routed_scaling_factor: float = 2.5
    n_shared_experts: int = 1
    first_k_dense_replace: int = 3
    n_group: int | None = 8
    topk_group: int | None = 4
    topk_method: str = "noaux_tc"
    norm_topk_prob: bool = True
    rope_interleave: bool = True
    unimplemented: ClassVar[Mapping[str, Any]] = {
        **v2.Config.unimplemented,
        "scoring_func": "sigmoid",
    }

    def check_router(self) -> None:
        """V3 implements norm_topk_prob."""


class Block(v2.Block):
    @staticmethod
    def router(config: Config) -> nn.Float32Router:
        return v2.sigmoid_router(config)

    @staticmethod
    def rope(config: Config) -> nn.Rope:
        """The rope of V2, with pairs as in `rope_interleave`."""
        rope = v2.Block.rope(config)
        rope.interleaved = config.rope_interleave
        return rope


class Model(v2.Model):
    block = Block
