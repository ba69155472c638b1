"""Phi-3-vision: Phi-3 with the tiles of an image besides the whole image (Abdin et al. 2024).

Cells of 2 x 2 patches are the rows of an image. A learned separator ends each line of cells, and
another one stands between the tiles and the whole image. transformers has no class of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Medium, Step, nn
from ostro.architectures.clip.vision import VisionTower, parameter
from ostro.architectures.llama import model as llama
from ostro.architectures.llava.model import merge_features
from ostro.architectures.phi3_v.config import Config


class Projection(nn.Module):
    def __init__(self, seen: int, d: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(seen, d, bias=True)
        self.linear_2 = nn.Linear(d, d, bias=True, shard="rowwise")
        self.act = F.gelu

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [n, seen] -> [n, d]."""
        return self.linear_2(self.act(self.linear_1(x, step)), step)


class ImageProcessor(nn.Module):
    """The vision encoder up to the feature layer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.vision_model = VisionTower(config.seen)
        # it does not affect the features
        del self.vision_model.post_layernorm

    def forward(self, pixels: Tensor, step: Step) -> Tensor:
        """pixels [n, 3, image_size, image_size] -> the states of patches [n, patches, width]."""
        return self.vision_model(pixels, step)[-1][:, 1:]


class ImageEmbedding(nn.Module):
    """From tiles to the rows of images."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.cells = 4 * config.vision_config.hidden_size, config.cells
        self.img_processor = ImageProcessor(config)
        self.img_projection = Projection(width, config.hidden_size)
        self.sub_GN = parameter(1, 1, 1, width)
        self.glb_GN = parameter(1, 1, width)

    def forward(self, media: Sequence[Medium], step: Step) -> list[Tensor]:
        """The features [rows, d] of each medium; step has a row for each."""
        tiles = [medium.arrays["pixels"] for medium in media]
        states = self.img_processor(torch.cat(tiles), step.rows(spread(tiles)))
        parts = states.split([len(each) for each in tiles])
        joined = [self.join(*pair) for pair in zip(media, parts, strict=True)]
        rows = self.img_projection(torch.cat(joined), step.rows(spread(joined)))
        return list(rows.split([len(each) for each in joined]))

    def join(self, medium: Medium, x: Tensor) -> Tensor:
        """The patches of a medium [1 + tiles, patches, width] -> its cells and separators."""
        rows, columns = medium.arrays["grid"].tolist()
        cells = self.gather(x)
        tiles = cells[1:].unflatten(0, (rows, columns)).transpose(1, 2)
        grid = tiles.flatten(2, 3).flatten(0, 1)
        return self.order(self.lines(grid), self.glb_GN[0].to(x.dtype), self.lines(cells[0]))

    def order(self, tiles: Tensor, separator: Tensor, whole: Tensor) -> Tensor:
        return torch.cat((tiles, separator, whole))

    def gather(self, x: Tensor) -> Tensor:
        """Patches [n, patches, width] -> cells [n, cells, cells, 4 * width]."""
        grid = x.unflatten(1, (self.cells, 2, self.cells, 2))
        return grid.transpose(2, 3).flatten(3)

    def lines(self, grid: Tensor) -> Tensor:
        """grid [rows, columns, n] -> [rows * (columns + 1), n], a separator after each row."""
        ends = self.sub_GN[0].to(grid.dtype).expand(len(grid), 1, -1)
        return torch.cat((grid, ends), 1).flatten(0, 1)


def spread(parts: Sequence[Tensor]) -> Tensor:
    """The index of the part of each row, on the device of the parts."""
    counts = torch.tensor([len(part) for part in parts])
    return torch.arange(len(parts)).repeat_interleave(counts).to(parts[0].device)


class Model(llama.Model):
    """A decoder with a vision encoder."""

    layers = (
        "model.vision_embed_tokens.img_processor.vision_model.encoder.layers",
        "model.layers",
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.model.vision_embed_tokens = ImageEmbedding(config)

    def encode(self, media: Sequence[Medium], step: Step) -> list[tuple[Tensor, ...]]:
        """Media hold "pixels" [1 + tiles, 3, image_size, image_size] and "grid" [2]."""
        return [(each,) for each in self.model.vision_embed_tokens(media, step)]

    def embed(self, step: Step) -> Tensor:
        return merge_features(super().embed(step), step.features)
