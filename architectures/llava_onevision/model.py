"""LLaVA-OneVision: LLaVA-NeXT with SigLIP, scaled tiles and pooled videos (Li et al. 2024).

Reference class LlavaOnevisionForConditionalGeneration of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Medium
from ostro.architectures.llava import model as llava
from ostro.architectures.llava_next import model as llava_next
from ostro.architectures.llava_next.tiles import Size, limited
from ostro.architectures.llava_onevision.inputs import SIDES, tiles_of
from ostro.errors import ConfigError

PINPOINTS = tuple([h, w] for h in SIDES for w in SIDES)


@dataclass(frozen=True, kw_only=True)
class Config(llava_next.Tiled, llava.Config):
    """vision_aspect_ratio: "anyres_max_N"; the features of more than N tiles are scaled down."""

    families: ClassVar[Mapping[str, str]] = {"text": "qwen2", "vision": "siglip_vision_model"}
    image_token_index: int = 151646
    video_token_index: int = 151647
    vision_feature_select_strategy: str = "full"
    vision_feature_layer: tuple[int, ...] = (-1,)
    image_grid_pinpoints: tuple[list[int], ...] = PINPOINTS
    vision_aspect_ratio: str = "anyres_max_9"

    def check(self) -> None:
        super().check()
        tiles_of(self.vision_aspect_ratio)
        if not 0 <= self.video_token_index < self.vocab_size:
            raise ConfigError(f"video_token_index={self.video_token_index} is out of range")


class Model(llava_next.Model):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.most = tiles_of(config.vision_aspect_ratio) * self.side**2

    def join(self, medium: Medium, x: Tensor) -> Tensor:
        """x [n, rows, d] -> the features of a medium [length, d]."""
        if medium.kind == "image" and len(x) > 1:
            return super().join(medium, x)
        if medium.kind == "video":
            half = -(-self.side // 2)
            frames = x.mT.unflatten(2, (self.side, self.side))
            x = self.scale(frames, (half, half)).flatten(2).mT
        return torch.cat((x.flatten(0, 1), self.image_newline[None].to(x.dtype)))

    def shrink(self, grid: Tensor) -> Tensor:
        size = limited((grid.shape[0], grid.shape[1]), self.most)
        if size == grid.shape[:2]:
            return grid
        return self.scale(grid.permute(2, 0, 1)[None], size)[0].permute(1, 2, 0)

    def scale(self, x: Tensor, size: Size) -> Tensor:
        """x [n, d, h, w] -> [n, d, *size]."""
        return F.interpolate(x, size, mode="bilinear")
