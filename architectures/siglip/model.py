"""SigLIP's vision encoder: a vision transformer without a class token (Zhai et al. 2023).

Reference class SiglipVisionModel of transformers. Module paths are those of the hub's checkpoints
below `vision_model`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ostro import Medium, Names, Pair, Step, nn
from ostro.architectures.clip import vision as clip
from ostro.errors import Unsupported


@dataclass(frozen=True, kw_only=True)
class Config(clip.VisionConfig):
    """`vision_use_head`: whether the checkpoint has a pooling head, which is not used."""

    image_size: int = 224
    patch_size: int = 16
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6
    vision_use_head: bool = True

    @property
    def side(self) -> int:
        """Patches of one row of an image."""
        return self.image_size // self.patch_size

    @property
    def rows(self) -> int:
        """Rows of one image: its patches row by row."""
        return self.side**2


class Patches(clip.Patches):
    """CLIP's patch embedding with a bias."""

    def __init__(self, d: int, channels: int, size: int) -> None:
        super().__init__(d, channels, size)
        self.bias = clip.parameter(d)

    def forward(self, pixels: Tensor) -> Tensor:
        return super().forward(pixels) + self.bias.to(pixels.dtype)


class Embeddings(clip.Embeddings):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.patch_embedding = Patches(config.hidden_size, config.num_channels, config.patch_size)


class VisionTower(clip.Tower):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)

    def last(self, states: Sequence[Tensor]) -> Tensor:
        """The last state, normed: [n, patches, d]."""
        return self.post_layernorm(states[-1])[0]


class Model(nn.EncoderModel):
    """The vision encoder as a standalone model: it encodes images and has no text model."""

    layers = ("vision_model.encoder.layers",)

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.vision_model = VisionTower(config)

    def encode(self, media: Sequence[Medium], step: Step) -> list[tuple[Tensor, ...]]:
        """Media hold "pixels" [channels, image_size, image_size]."""
        pixels = torch.stack([medium.arrays["pixels"] for medium in media])
        tower = self.vision_model
        return [(x,) for x in tower.last(tower(pixels, step))]

    def embed(self, step: Step) -> Tensor:
        raise Unsupported("SigLIP's vision encoder has no text input; load a multimodal model")

    def hidden(self, step: Step) -> Tensor:
        return self.embed(step)


def names(config: Config) -> Names:
    """transformers 5 saves the encoder without the prefix "vision_model" of older files."""
    parts = ("embeddings", "encoder", "post_layernorm")
    bare = tuple(Pair(part, f"vision_model.{part}") for part in parts)
    return Names(hub=bare, ignore=("head.{rest}", "vision_model.head.{rest}"))
