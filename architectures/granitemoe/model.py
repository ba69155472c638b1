"""GraniteMoE: Granite with routed experts, and optionally an MLP for all rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ostro import Step, nn
from ostro.architectures.granite import model as granite
from ostro.architectures.mixtral import model as mixtral
from ostro.config import MAX_SIZE
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config(mixtral.ExpertsConfig, granite.Config):
    """shared_intermediate_size: the width of the shared MLP; 0 = none."""

    shared_intermediate_size: int = 0
    unimplemented: ClassVar[Mapping[str, Any]] = {
        **granite.Config.unimplemented,
        "position_embedding_type": "rope",
    }

    def check(self) -> None:
        super().check()
        if not 0 <= self.shared_intermediate_size < MAX_SIZE:
            raise ConfigError(
                f"shared_intermediate_size={self.shared_intermediate_size} is not within "
                f"0..{MAX_SIZE - 1}"
            )


class SharedMLP(mixtral.SparseMLP):
    """Routed experts, and an MLP for all rows."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, config.intermediate_size)
        d, hidden = config.hidden_size, config.shared_intermediate_size
        self.shared_mlp = nn.GatedMLP(d, hidden, config.hidden_act)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return super().forward(x, step) + self.shared_mlp(x, step)


class Block(granite.Block):
    def feed_forward(self, config: Config, layer: int) -> nn.Module:
        if config.shared_intermediate_size:
            return SharedMLP(config)
        return mixtral.SparseMLP(config, config.intermediate_size)


class Model(granite.Model):
    block = Block
