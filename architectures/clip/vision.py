"""CLIP's vision encoder: a vision transformer over square images.

Reference class CLIPVisionModel of transformers. Module paths are those of the hub's checkpoints
below `vision_model`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Step, nn
from ostro.architectures.clip.model import Encoder, check_activation
from ostro.config import ModelConfig, check_sizes
from ostro.errors import ConfigError, RequestError

MAX_LAYERS = 1024
"""The most layers of a vision encoder."""


@dataclass(frozen=True, kw_only=True)
class VisionConfig(ModelConfig):
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_channels: int = 3
    image_size: int = 224
    patch_size: int = 32
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5
    projection_dim: int = 512

    @property
    def rows(self) -> int:
        """Rows of one image: its class token, then its patches row by row."""
        return 1 + (self.image_size // self.patch_size) ** 2

    def check(self) -> None:
        super().check()
        check_activation(self.hidden_act)
        check_sizes(
            self,
            "hidden_size intermediate_size num_hidden_layers num_attention_heads num_channels "
            "image_size patch_size",
        )
        if self.num_hidden_layers > MAX_LAYERS:
            raise ConfigError(
                f"num_hidden_layers={self.num_hidden_layers} is not within 1..{MAX_LAYERS}"
            )
        if self.image_size < self.patch_size:
            raise ConfigError(
                f"image_size={self.image_size} is smaller than patch_size={self.patch_size}"
            )
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"hidden_size={self.hidden_size} is not a multiple of "
                f"num_attention_heads={self.num_attention_heads}"
            )


class Embeddings(nn.Module):
    """Patches of square images, with learned positions."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        d = config.hidden_size
        self.patch_embedding = Patches(d, config.num_channels, config.patch_size)
        self.position_embedding = Table(config.rows, d)
        self.image_size = config.image_size

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels [n, channels, image_size, image_size] -> [n, rows, d]."""
        if pixels.shape[2:] != (self.image_size, self.image_size):
            height, width = pixels.shape[2:]
            raise RequestError(
                f"an image of {height} x {width} pixels, expected "
                f"{self.image_size} x {self.image_size}; resize it"
            )
        rows = self.rows(self.patch_embedding(pixels))
        return rows + self.position_embedding.weight.to(rows.dtype)

    def rows(self, patches: Tensor) -> Tensor:
        """The rows of images, from their patches [n, patches, d]."""
        return patches


class VisionEmbeddings(Embeddings):
    """With a class token before the patches."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__(config)
        self.class_embedding = parameter(config.hidden_size)

    def rows(self, patches: Tensor) -> Tensor:
        first = self.class_embedding.to(patches.dtype).expand(len(patches), 1, -1)
        return torch.cat((first, patches), 1)


class Patches(nn.Module):
    """Patch embedding: a convolution whose stride is its kernel size."""

    def __init__(self, d: int, channels: int, size: int) -> None:
        super().__init__()
        self.weight = parameter(d, channels, size, size)

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels [n, channels, H, W] -> [n, patches, d] in the pixels' dtype."""
        size = self.weight.shape[-1]
        grid = F.conv2d(pixels, self.weight.to(pixels.dtype), stride=size)
        return grid.flatten(2).transpose(1, 2)


class Table(nn.Module):
    """Learned positions, of which all rows are used."""

    def __init__(self, n: int, d: int) -> None:
        super().__init__()
        self.weight = parameter(n, d)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape), requires_grad=False)


class Tower(nn.Module):
    """The modules below `vision_model`: a vision transformer over square images."""

    embeddings: Embeddings

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config, causal=False)
        self.post_layernorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def enter(self, pixels: Tensor) -> Tensor:
        """The input of the first layer: [n, rows, d]."""
        return self.embeddings(pixels)

    def forward(self, pixels: Tensor, step: Step) -> list[Tensor]:
        """Hidden states: the input of the first layer, and the output of every layer.

        pixels [n, channels, image_size, image_size], normalised, in the dtype to compute in; step
        has a row for each image. Each state is [n, rows, d]; none is normed by `post_layernorm`.
        Raises RequestError for images of another size.
        """
        x = self.enter(pixels)
        n, length = x.shape[:2]
        index = torch.arange(n, device=x.device).repeat_interleave(length)
        rows = replace(step.rows(index), bounds=range(0, n * length + 1, length))
        return [state.view(n, length, -1) for state in self.encoder(x.flatten(0, 1), rows)]


class VisionTower(Tower):
    """CLIP's vision encoder, whose rows begin with the class token."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__(config)
        self.embeddings = VisionEmbeddings(config)
        self.pre_layrnorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def enter(self, pixels: Tensor) -> Tensor:
        return self.pre_layrnorm(self.embeddings(pixels))[0]

    def pooled(self, states: list[Tensor]) -> Tensor:
        """The class token's last state, normed: [n, d]."""
        return self.post_layernorm(states[-1][:, 0])[0]
