"""V2 and V3 under the one name that GGUF files have for both; a key says how experts are scored."""

from __future__ import annotations

from dataclasses import dataclass

from ostro import nn
from ostro.architectures.deepseek_v2 import model as v2
from ostro.architectures.deepseek_v3 import model as v3
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config(v3.Config):
    scoring_func: str = "sigmoid"

    def check_router(self) -> None:
        if self.scoring_func not in ("softmax", "sigmoid"):
            raise ConfigError(f"scoring_func={self.scoring_func!r:.80} is not implemented")
        if self.scoring_func == "softmax":
            v2.Config.check_router(self)


class Block(v2.Block):
    @staticmethod
    def router(config: Config) -> v2.Router:
        return (v3.Router if config.scoring_func == "sigmoid" else v2.Router)(config)

    @staticmethod
    def rope(config: Config) -> nn.Rope:
        return v3.Block.rope(config)


class Model(v2.Model):
    block = Block
