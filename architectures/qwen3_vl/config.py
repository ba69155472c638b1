"""Qwen3-VL's config: Qwen3 with mrope, and a vision encoder with deepstack features."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import ClassVar

from ostro.architectures.qwen2_5_vl import config as qwen2_5_vl
from ostro.architectures.qwen3 import model as qwen3
from ostro.errors import ConfigError

ACTIVATIONS = ("gelu", "gelu_pytorch_tanh")
"""The supported values of hidden_act."""


@dataclass(frozen=True, kw_only=True)
class Text(qwen3.Config, qwen2_5_vl.RopeConfig):
    """The text config."""

    default_sections: ClassVar[tuple[int, ...]] = (24, 20, 20)
    default_theta: ClassVar[float] = 500000.0


@dataclass(frozen=True, kw_only=True)
class DeepTower(qwen2_5_vl.Tower):
    """A vision config with learned positions and deepstack layers."""

    depth: int = 27
    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_heads: int = 16
    out_hidden_size: int = 3584
    patch_size: int = 16
    hidden_act: str = "gelu_pytorch_tanh"
    num_position_embeddings: int = 2304
    deepstack_visual_indexes: tuple[int, ...] = (8, 16, 24)

    @property
    def side(self) -> int:
        """Rows and columns of the grid of learned positions."""
        return isqrt(self.num_position_embeddings)

    def check(self) -> None:
        super().check()
        if self.hidden_act not in ACTIVATIONS:
            raise ConfigError(f"vision_config: hidden_act={self.hidden_act!r} is not implemented")
        if self.side < 1 or self.side**2 != self.num_position_embeddings:
            raise ConfigError(
                f"vision_config: num_position_embeddings={self.num_position_embeddings} is not a "
                "square"
            )
        found = self.deepstack_visual_indexes
        if list(found) != sorted({i for i in found if 0 <= i < self.depth}):
            raise ConfigError(
                f"vision_config: deepstack_visual_indexes={list(found)} are not layers of "
                f"{self.depth} in ascending order"
            )


@dataclass(frozen=True, kw_only=True)
class SightedConfig(qwen2_5_vl.SightedConfig):
    """A text config, and a vision config with deepstack layers."""

    vision: DeepTower


@dataclass(frozen=True, kw_only=True)
class Config(SightedConfig):
    text: Text
