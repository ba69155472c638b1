"""DeepSeek-V2 and V3 in GGUF files, where both are "deepseek2" and a key selects the router."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ostro import nn
from ostro.architectures.deepseek_v2 import model as v2
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config(v2.Config):
    """`scoring_func` is "softmax" for V2's router and "sigmoid" for V3's."""

    scoring_func: str = "sigmoid"
    unimplemented: ClassVar[Mapping[str, Any]] = {
        **v2.Config.unimplemented,
        "rope_interleave": True,
    }

    def check_router(self) -> None:
        if self.scoring_func not in ("softmax", "sigmoid"):
            raise ConfigError(f"scoring_func={self.scoring_func!r:.80} is not implemented")
        if self.scoring_func == "softmax":
            super().check_router()


class Block(v2.Block):
    @staticmethod
    def router(config: Config) -> nn.Float32Router:
        return (
            v2.sigmoid_router(config)
            if config.scoring_func == "sigmoid"
            else v2.Block.router(config)
        )


class Model(v2.Model):
    block = Block
