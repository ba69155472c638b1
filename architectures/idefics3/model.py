"""Idefics 3 and SmolVLM: Llama with a SigLIP encoder of tiles, and cells of patches as rows
(Laurencon et al. 2024).

Reference classes Idefics3ForConditionalGeneration and SmolVLMForConditionalGeneration of
transformers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ostro import Medium, Names, Pair, Step, nn
from ostro.architectures.llama import model as llama
from ostro.architectures.llava.config import SightedConfig
from ostro.architectures.llava.model import merge_features
from ostro.architectures.siglip import model as siglip
from ostro.config import check_sizes
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Vision(siglip.Config):
    hidden_size: int = 1152
    num_attention_heads: int = 16
    patch_size: int = 32


@dataclass(frozen=True, kw_only=True)
class Config(SightedConfig):
    """scale_factor: the side, in patches, of a cell that becomes one row."""

    families: ClassVar[Mapping[str, str]] = {"text": "llama", "vision": "idefics3_vision"}
    text: llama.Config
    vision: Vision
    image_token_index: int = 128257
    image_token_id: int = 128257
    scale_factor: int = 2

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], *, allow: Sequence[str] = ()) -> Self:
        """As the base class."""
        id = raw.get("image_token_id", cls.image_token_id)
        if type(id) is not int:
            raise ConfigError(f"image_token_id={id!r:.80} is not an integer")
        return super().from_hf(raw, allow=allow)

    @classmethod
    def kinds(cls, name: str) -> Collection[str]:
        """Published files have the model type of the whole model in the vision config."""
        return ("llama",) if name == "text" else VISION

    def check(self) -> None:
        super().check()
        check_sizes(self, "scale_factor")
        if self.vision.side % self.scale_factor:
            raise ConfigError(
                f"scale_factor={self.scale_factor} does not divide the {self.vision.side} patches "
                "of a tile's side"
            )


VISION = ("idefics3_vision", "idefics3", "smolvlm_vision", "smolvlm")
"""The model types of a vision_config."""


def buckets(count: int, side: int) -> Tensor:
    """The row of the position table, of `side` rows, for each of `count` patches of a side.

    A patch has the row of its fraction of the side. float32, as in the reference: with some counts
    rounding gives the row before.
    """
    edges = torch.arange(1 / side, 1.0, 1 / side, dtype=torch.float32)
    places = torch.arange(count, dtype=torch.float32) * (1.0 / torch.tensor(count))
    return torch.bucketize(places.clamp(max=1.0 - 1e-6), edges, right=True)


class Embeddings(siglip.Embeddings):
    """Patches with the positions of `buckets`."""

    def __init__(self, config: Vision) -> None:
        super().__init__(config)
        self.side = config.side

    def places(self) -> Tensor:
        """The rows of the position table, patch by patch."""
        axis = buckets(self.side, self.side)
        return (axis[:, None] * self.side + axis).flatten()

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels [n, channels, image_size, image_size] -> [n, rows, d]."""
        rows = self.patch_embedding(pixels)
        table = self.position_embedding.weight
        return rows + table[self.places().to(table.device)].to(rows.dtype)


class VisionTower(siglip.VisionTower):
    def __init__(self, config: Vision) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)


class Projection(nn.Module):
    def __init__(self, seen: int, d: int) -> None:
        super().__init__()
        self.proj = nn.Linear(seen, d)


class Connector(nn.Module):
    """One linear over the patches of a cell."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.scale = config.scale_factor
        seen = config.vision.hidden_size * self.scale**2
        self.modality_projection = Projection(seen, config.text.hidden_size)

    def gather(self, x: Tensor) -> Tensor:
        """Patches [n, side * side, d] -> cells [n, cells, d * scale * scale]."""
        side = int(x.shape[1] ** 0.5) // self.scale
        cells = x.unflatten(1, (side, self.scale, side, self.scale)).transpose(2, 3)
        return cells.flatten(3).flatten(1, 2)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [n, patches, d] -> [n, cells, d]; step has a row for each of n tiles."""
        cells = self.gather(x)
        index = torch.arange(len(cells), device=x.device).repeat_interleave(cells.shape[1])
        rows = self.modality_projection.proj(cells.flatten(0, 1), step.rows(index))
        return rows.unflatten(0, cells.shape[:2])


class Model(llama.Model):
    """A decoder with a vision encoder."""

    layers = ("model.layers", "vision_model.encoder.layers")

    def __init__(self, config: Config) -> None:
        super().__init__(config.text)
        self.vision_model = VisionTower(config.vision)
        self.connector = Connector(config)

    def encode(self, media: Sequence[Medium], step: Step) -> list[tuple[Tensor, ...]]:
        """Media hold "pixels" [tiles, 3, image_size, image_size]."""
        tiles = [medium.arrays["pixels"] for medium in media]
        counts = [len(each) for each in tiles]
        index = torch.arange(len(media)).repeat_interleave(torch.tensor(counts))
        rows = step.rows(index.to(tiles[0].device))
        states = self.vision_model(torch.cat(tiles), rows)
        found = self.connector(self.vision_model.last(states), rows)
        return [(each.flatten(0, 1),) for each in found.split(counts)]

    def embed(self, step: Step) -> Tensor:
        return merge_features(super().embed(step), step.features)


def names(config: Config) -> Names:
    """The names on the hub."""
    parts = {"text_model": "model", "vision_model": "vision_model", "connector": "connector"}
    pairs = tuple(Pair(f"model.{theirs}", ours) for theirs, ours in parts.items())
    return Names(hub=pairs, ignore=(*Names.ignore, "model.vision_model.embeddings.position_ids"))
