"""Gemma 3 with images: a SigLIP encoder whose states are pooled, normed and projected.

Gemma team 2025; reference class Gemma3ForConditionalGeneration of transformers. Attention among the
rows of an image is bidirectional in every layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Add, Medium, Names, Pair, Step, nn
from ostro.architectures.gemma2.names import HUB
from ostro.architectures.gemma3 import model as gemma3
from ostro.architectures.llava.config import SightedConfig
from ostro.architectures.llava.model import PATHS, TEXT, merge_features
from ostro.architectures.siglip import model as siglip
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config(SightedConfig):
    """`boi_token_index` and `eoi_token_index` surround the rows of an image."""

    families: ClassVar[Mapping[str, str]] = {"text": "gemma3_text", "vision": "siglip_vision_model"}
    text: gemma3.Config
    vision: siglip.Config
    image_token_index: int = 262144
    boi_token_index: int = 255999
    eoi_token_index: int = 256000
    mm_tokens_per_image: int = 256
    tie_word_embeddings: bool = True

    @classmethod
    def part(cls, name: str, raw: Mapping[str, Any], allow: Sequence[str]) -> dict[str, Any]:
        """As the base class; configs of the smaller models omit num_key_value_heads."""
        part = super().part(name, raw, allow)
        if name == "text":
            part.setdefault("num_key_value_heads", gemma3.Config.num_key_value_heads)
        return part

    @property
    def pooled(self) -> int:
        """The side, in patches, of a square that becomes one row of the decoder."""
        return self.vision.side // isqrt(self.mm_tokens_per_image)

    def check(self) -> None:
        super().check()
        rows, side = self.mm_tokens_per_image, self.vision.side
        if rows < 1 or isqrt(rows) ** 2 != rows or side % isqrt(rows):
            raise ConfigError(
                f"mm_tokens_per_image={rows} does not divide the {side} x {side} patches of an "
                "image into squares"
            )


class Projector(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        d = config.vision.hidden_size
        self.side, self.pooled = config.vision.side, config.pooled
        self.mm_soft_emb_norm = nn.RMSNorm(d, config.vision.layer_norm_eps)
        self.mm_input_projection = nn.Linear(d, config.text.hidden_size)

    def pool(self, x: Tensor) -> Tensor:
        """The means of squares of patches: [n, patches, d] -> [n * rows, d]."""
        grid = x.mT.unflatten(2, (self.side, self.side))
        return F.avg_pool2d(grid, self.pooled).flatten(2).mT.flatten(0, 1)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [n, patches, d], step with a row for each of n images -> [n * rows, hidden]."""
        rows = self.pool(x)
        index = torch.arange(len(x), device=x.device).repeat_interleave(len(rows) // len(x))
        return self.mm_input_projection(self.mm_soft_emb_norm(rows)[0], step.rows(index))


class Model(gemma3.Model):
    layers = ("vision_tower.encoder.layers", "model.layers")

    def __init__(self, config: Config) -> None:
        super().__init__(config.text)
        self.rows = config.mm_tokens_per_image
        self.vision_tower = siglip.VisionTower(config.vision)
        self.multi_modal_projector = Projector(config)

    def encode(self, media: Sequence[Medium], step: Step) -> list[tuple[Tensor, ...]]:
        """Media hold "pixels" [3, image_size, image_size]."""
        pixels = torch.stack([medium.arrays["pixels"] for medium in media])
        states = self.vision_tower.last(self.vision_tower(pixels, step))
        return [(each,) for each in self.multi_modal_projector(states, step).split(self.rows)]

    def embed(self, step: Step) -> Tensor:
        """Embeddings of text, which are scaled, and of images, which are not."""
        return merge_features(super().embed(step), step.features)


@dataclass(frozen=True)
class Transpose:
    """The checkpoint stores the transpose of a linear's weight."""

    packed: bool = field(default=False, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        return tensor.t()

    def write(self, tensor: Tensor) -> Tensor:
        return tensor.t()


PROJECTOR = "multi_modal_projector"


def names(config: Config) -> Names:
    """As LLaVA's; the norms of decoder and projector are stored as in Gemma."""
    norms = [
        Pair(pair.theirs.replace(text.ours, text.theirs, 1), pair.ours, pair.transform)
        for text in TEXT
        for pair in HUB
        if pair.theirs.startswith(f"{text.ours}.")
    ]
    parts = ("embeddings.patch_embedding", "embeddings.position_embedding", "encoder")
    tower = [
        Pair(f"{root}.{part}", f"vision_tower.{part}")
        for root in PATHS
        for part in (*parts, "post_layernorm")
    ]
    projector = [
        Pair(f"{root}{PROJECTOR}.{theirs}", f"{PROJECTOR}.{ours}", transform)
        for root in ("", "model.")
        for theirs, ours, transform in (
            ("mm_soft_emb_norm", "mm_soft_emb_norm", Add(1.0)),
            ("mm_input_projection_weight", "mm_input_projection.weight", Transpose()),
        )
    ]
    unused = [
        f"{root}.{part}" for root in PATHS for part in ("head.{rest}", "embeddings.position_ids")
    ]
    return Names(hub=(*tower, *projector, *norms, *TEXT), ignore=(*Names.ignore, *unused))
