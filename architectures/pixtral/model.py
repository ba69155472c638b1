"""Pixtral's vision encoder: images of any size, with two-dimensional rope (Mistral AI 2024).

Reference class PixtralVisionModel of transformers. The patches of an image attend to each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isclose
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Medium, Names, Pair, Step, nn
from ostro.architectures.clip.vision import VisionConfig, parameter
from ostro.architectures.pixtral.inputs import SIDE
from ostro.errors import ConfigError, Unsupported
from ostro.ops import Op, rope_table, varlen_attention

EPS = 1e-5

AXIAL = ("axial", "default")
"""Names of the rope of two dimensions; transformers 5.0 writes the second."""


@dataclass(frozen=True, kw_only=True)
class Config(VisionConfig):
    """The vision config; `image_size` does not limit the size of images."""

    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    image_size: int = 1024
    patch_size: int = 16
    hidden_act: str = "gelu"
    head_dim: int | None = None
    rope_parameters: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        """rope_parameters, also from older files with rope_theta alone."""
        values = super().derive(raw, values)
        stated = values.get("rope_parameters") or {}
        return values | {"rope_parameters": {"rope_theta": raw.get("rope_theta", 1e4), **stated}}

    def check(self) -> None:
        super().check()
        width, heads = self.hidden_size, self.num_attention_heads
        if width % (4 * heads):
            raise ConfigError(
                f"vision_config: hidden_size={width} does not make num_attention_heads={heads} "
                "heads with pairs for rows and columns"
            )
        if self.head_dim not in (None, width // heads):
            raise ConfigError(
                f"vision_config: head_dim={self.head_dim} is not hidden_size / "
                f"num_attention_heads = {width // heads}"
            )
        if not isclose(self.layer_norm_eps, EPS, rel_tol=1e-6):
            raise ConfigError(f"vision_config: layer_norm_eps={self.layer_norm_eps} is not {EPS}")
        theta = self.rope_parameters["rope_theta"]
        kind = self.rope_parameters.get("rope_type", "axial")
        if type(theta) not in (int, float) or not 1 <= theta < 1e30 or kind not in AXIAL:
            raise ConfigError(
                f"vision_config: rope_parameters={self.rope_parameters!r:.80} are not implemented"
            )


class Rope(nn.Rope):
    """Rope in two dimensions: the even frequencies rotate by the row, the odd by the column."""

    def __init__(self, config: Config) -> None:
        size = config.hidden_size // config.num_attention_heads
        rule = {"rope_theta": float(config.rope_parameters["rope_theta"])}
        super().__init__(rule, size, SIDE, sections=(size // 4, size // 4))

    def finalize(self, context: int, device: torch.device) -> None:
        """Build the table, independent of the text's context."""
        cos, sin = rope_table(self.rule, self.head_dim, self.context).chunk(2, -1)
        parts = (cos[:, 0::2], cos[:, 1::2], sin[:, 0::2], sin[:, 1::2])
        self.table = torch.cat(parts, -1).to(device)


class Attention(nn.Module):
    """Attention within the images of `step.bounds`."""

    def __init__(self, config: Config, rope: nn.Rope) -> None:
        super().__init__()
        d, self.heads, self.rope = config.hidden_size, config.num_attention_heads, rope
        self.qkv = nn.Linear(d, {"q_proj": d, "k_proj": d, "v_proj": d})
        self.o_proj = nn.Linear(d, d, shard="rowwise")
        self.scale = (d // self.heads) ** -0.5
        self.attend = Op(varlen_attention.KERNELS)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [n, d] -> [n, d]; `step.positions` [2, n] are the patches' rows and columns."""
        q, k, v = self.qkv(x, step).view(len(x), 3, self.heads, -1).unbind(1)
        q, k = self.rope(q, k, step.positions)
        return self.o_proj(self.attend(q, k, v, step.bounds, self.scale).flatten(1), step)


class Layer(nn.Module):
    def __init__(self, config: Config, rope: nn.Rope) -> None:
        super().__init__()
        d = config.hidden_size
        self.attention_norm = nn.RMSNorm(d, EPS)
        self.attention = Attention(config, rope)
        self.ffn_norm = nn.RMSNorm(d, EPS)
        self.feed_forward = nn.GatedMLP(d, config.intermediate_size, config.hidden_act)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        y, x = self.ffn_norm(self.attention(self.attention_norm(x)[0], step), x)
        return x + self.feed_forward(y, step)


class Encoder(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        rope = Rope(config)
        self.layers = nn.ModuleList(Layer(config, rope) for _ in range(config.num_hidden_layers))


class PatchConv(nn.Module):
    """Patch embedding: a convolution whose stride is its kernel size."""

    def __init__(self, d: int, channels: int, size: int) -> None:
        super().__init__()
        self.weight = parameter(d, channels, size, size)

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels [channels, H, W] -> [rows, columns, d]."""
        stride = self.weight.shape[-1]
        grid = F.conv2d(pixels[None], self.weight.to(pixels.dtype), stride=stride)
        return grid[0].permute(1, 2, 0)


class VisionTower(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.patch_conv = PatchConv(config.hidden_size, config.num_channels, config.patch_size)
        self.ln_pre = nn.RMSNorm(config.hidden_size, EPS)
        self.encoder = Encoder(config)

    def forward(self, images: Sequence[Tensor], step: Step) -> list[Tensor]:
        """Hidden states: the input of the first layer, and the output of every layer.

        images: [channels, height, width] each, normalised, in the dtype to compute in; step has a
        row for each image. Each state is [n, d], the patches of all images row by row.
        """
        grids = [self.patch_conv(pixels) for pixels in images]
        spots = [places(grid) for grid in grids]
        sizes = [spot.shape[1] for spot in spots]
        index = torch.arange(len(grids)).repeat_interleave(torch.tensor(sizes))
        bounds = [0, *torch.tensor(sizes).cumsum(0).tolist()]
        rows = step.rows(index.to(grids[0].device))
        rows = replace(rows, positions=torch.cat(spots, 1), bounds=bounds)
        states = [self.ln_pre(torch.cat([grid.flatten(0, 1) for grid in grids]))[0]]
        for layer in self.encoder.layers:
            states.append(layer(states[-1], rows))
        return states


def places(grid: Tensor) -> Tensor:
    """Row and column of every patch of a grid [rows, columns, d]: [2, rows * columns]."""
    axes = [torch.arange(size, device=grid.device) for size in grid.shape[:2]]
    return torch.stack(torch.meshgrid(*axes, indexing="ij")).flatten(1)


class Model(nn.EncoderModel):
    """The vision encoder as a standalone model: it encodes images and has no text model."""

    layers = ("vision_model.encoder.layers",)

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.vision_model = VisionTower(config)

    def encode(self, media: Sequence[Medium], step: Step) -> list[tuple[Tensor, ...]]:
        """Media hold "pixels" [channels, height, width]."""
        images = [medium.arrays["pixels"] for medium in media]
        size = self.vision_model.patch_conv.weight.shape[-1]
        sizes = [(x.shape[1] // size) * (x.shape[2] // size) for x in images]
        return [(x,) for x in self.vision_model(images, step)[-1].split(sizes)]

    def embed(self, step: Step) -> Tensor:
        raise Unsupported("Pixtral's vision encoder has no text input; load a multimodal model")

    def hidden(self, step: Step) -> Tensor:
        return self.embed(step)


def pairs(theirs: str, ours: str, layers: int) -> Iterator[Pair]:
    """The names of an encoder of so many layers below `theirs`, and below `ours`."""
    for part in ("patch_conv", "ln_pre"):
        yield Pair(f"{theirs}{part}", f"{ours}.{part}")
    for i in range(layers):
        yield Pair(f"{theirs}transformer.layers.{i}", f"{ours}.encoder.layers.{i}")


def names(config: Config) -> Names:
    return Names(hub=tuple(pairs("", "vision_model", config.num_hidden_layers)))
