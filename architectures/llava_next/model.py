"""LLaVA-NeXT (1.6): LLaVA with the tiles of an image besides the whole image (Liu et al. 2024).

Reference classes LlavaNextForConditionalGeneration and LlavaNextVideoForConditionalGeneration of
transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Medium, Names, Pair, Step
from ostro.architectures.clip.vision import VisionConfig, parameter
from ostro.architectures.llava import model as llava
from ostro.architectures.llava_next.inputs import check_resolutions
from ostro.config import ModelConfig
from ostro.errors import ConfigError

PINPOINTS = ([336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008])


@dataclass(frozen=True, kw_only=True)
class Tiled(ModelConfig):
    """image_grid_pinpoints: the resolutions (height, width) of tiled images."""

    vision: VisionConfig
    vision_type: str = "clip_vision_model"
    vision_feature_select_strategy: str = "default"
    image_grid_pinpoints: tuple[list[int], ...] = PINPOINTS

    @property
    def side(self) -> int:
        """Patches of one row of a tile."""
        return self.vision.image_size // self.vision.patch_size

    def check(self) -> None:
        super().check()
        sizes = self.image_grid_pinpoints
        if not all(len(size) == 2 and {*map(type, size)} == {int} for size in sizes):
            raise ConfigError("image_grid_pinpoints: expected pairs of a height and a width")
        check_resolutions([(size[0], size[1]) for size in sizes], self.vision.image_size)
        skipped = int(self.vision_feature_select_strategy == "default")
        if self.vision.rows - skipped != self.side**2:
            raise ConfigError(
                f"vision_feature_select_strategy={self.vision_feature_select_strategy!r} does not "
                f"select the {self.side**2} patches of a tile of {self.vision_type}"
            )


@dataclass(frozen=True, kw_only=True)
class Config(Tiled, llava.Config):
    """The config of models with images."""


@dataclass(frozen=True, kw_only=True)
class VideoConfig(Tiled, llava.Config):
    """spatial_pool_mode: "average" or "max" pooling of video frames by spatial_pool_stride."""

    image_token_index: int = 32001
    video_token_index: int = 32000
    spatial_pool_mode: str = "average"
    spatial_pool_stride: int = 2

    def check(self) -> None:
        super().check()
        if not 0 <= self.video_token_index < self.vocab_size:
            raise ConfigError(f"video_token_index={self.video_token_index} is out of range")
        if self.spatial_pool_mode not in ("average", "max"):
            raise ConfigError(f"spatial_pool_mode={self.spatial_pool_mode!r} is not implemented")
        if not 0 < self.spatial_pool_stride <= self.side:
            raise ConfigError(
                f"spatial_pool_stride={self.spatial_pool_stride} is not within 1..{self.side}"
            )


class Model(llava.Model):
    def __init__(self, config: llava.Config) -> None:
        super().__init__(config)
        self.side = config.vision.image_size // config.vision.patch_size
        self.image_newline = parameter(config.text.hidden_size)

    def encode(self, media: Sequence[Medium], step: Step) -> list[tuple[Tensor, ...]]:
        """Media hold "pixels" [tiles, 3, image_size, image_size], and images "grid" [4]."""
        pixels = [medium.arrays["pixels"] for medium in media]
        counts = [len(each) for each in pixels]
        index = torch.arange(len(media)).repeat_interleave(torch.tensor(counts))
        rows = step.rows(index.to(pixels[0].device))
        states = self.select(torch.cat(pixels), rows).split(counts)
        tiles = [
            self.pool(x) if medium.kind == "video" else x
            for medium, x in zip(media, states, strict=True)
        ]
        return [
            (self.join(medium, self.project(x, step.rows(torch.full((len(x),), i).to(x.device)))),)
            for i, (medium, x) in enumerate(zip(media, tiles, strict=True))
        ]

    def pool(self, x: Tensor) -> Tensor:
        """The states of video frames [n, rows, width], pooled."""
        return x

    def join(self, medium: Medium, x: Tensor) -> Tensor:
        """x [n, rows, d] -> the features of a medium [length, d]."""
        if medium.kind == "video":
            return x.flatten(0, 1)
        rows, columns, top, left = medium.arrays["grid"].tolist()
        grid = x[1:].view(rows, columns, self.side, self.side, -1).transpose(1, 2)
        grid = grid.reshape(rows * self.side, columns * self.side, -1)
        grid = self.shrink(grid[top : len(grid) - top, left : grid.shape[1] - left])
        return torch.cat((x[0], self.lines(grid)))

    def shrink(self, grid: Tensor) -> Tensor:
        """The features of all tiles [rows, columns, d], pooled if they are too many."""
        return grid

    def lines(self, grid: Tensor) -> Tensor:
        """grid [rows, columns, d] -> [rows * (columns + 1), d], a newline after each row."""
        ends = self.image_newline.to(grid.dtype).expand(len(grid), 1, -1)
        return torch.cat((grid, ends), 1).flatten(0, 1)


class VideoModel(Model):
    def __init__(self, config: VideoConfig) -> None:
        super().__init__(config)
        self.stride = config.spatial_pool_stride
        self.pooling = F.max_pool2d if config.spatial_pool_mode == "max" else F.avg_pool2d

    def pool(self, x: Tensor) -> Tensor:
        grid = x.mT.unflatten(2, (self.side, self.side))
        return self.pooling(grid, self.stride).flatten(2).mT


def names(config: llava.Config) -> Names:
    """As LLaVA's, with the newline."""
    found = llava.names(config)
    return replace(found, hub=(Pair("model.image_newline", "image_newline"), *found.hub))
