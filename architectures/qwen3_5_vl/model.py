"""Qwen3.5 with media: interleaved mrope on a part of each head, and Qwen3-VL's vision encoder
without deepstack features.

Reference classes Qwen3_5ForConditionalGeneration and Qwen3_5MoeForConditionalGeneration of
transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ostro.architectures.llama import model as llama
from ostro.architectures.mixtral import model as mixtral
from ostro.architectures.qwen2_5_vl.config import RopeConfig
from ostro.architectures.qwen2_5_vl.model import Sighted
from ostro.architectures.qwen3_5 import model as qwen3_5
from ostro.architectures.qwen3_vl.config import DeepTower, SightedConfig
from ostro.architectures.qwen3_vl.vision import Tower as VisionEncoder
from ostro.config import ModelConfig
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class MropeConfig(RopeConfig):
    """Fields that other bases have as well take the defaults of this class, the first base."""

    head_dim: int = 256
    max_position_embeddings: int = 32768
    default_sections: ClassVar[tuple[int, ...]] = (11, 11, 10)


@dataclass(frozen=True, kw_only=True)
class Text(MropeConfig, qwen3_5.DeltaConfig, llama.Config):
    """The text config."""


@dataclass(frozen=True, kw_only=True)
class SparseText(
    MropeConfig,
    qwen3_5.DeltaConfig,
    qwen3_5.EveryLayerConfig,
    mixtral.SparseConfig,
    llama.Config,
):
    """The text config with experts; no layer uses intermediate_size."""

    intermediate_size: int = 5632


@dataclass(frozen=True, kw_only=True)
class Tower(DeepTower):
    """The vision config."""

    deepstack_visual_indexes: tuple[int, ...] = ()

    def check(self) -> None:
        super().check()
        if self.deepstack_visual_indexes:
            raise ConfigError(
                f"vision_config: deepstack_visual_indexes={list(self.deepstack_visual_indexes)} "
                "is not implemented"
            )


@dataclass(frozen=True, kw_only=True)
class TokensConfig(ModelConfig):
    """The ids of the tokens around media; precedes `SightedConfig` among the bases."""

    image_token_id: int = 248056
    video_token_id: int = 248057
    vision_start_token_id: int = 248053
    vision_end_token_id: int = 248054


@dataclass(frozen=True, kw_only=True)
class Config(TokensConfig, SightedConfig):
    text: Text
    vision: Tower


@dataclass(frozen=True, kw_only=True)
class SparseConfig(TokensConfig, SightedConfig):
    text: SparseText
    vision: Tower


class Model(Sighted):
    block = qwen3_5.Block

    def __init__(self, config: Config | SparseConfig) -> None:
        super().__init__(config.text)
        self.visual = VisionEncoder(config.vision)
