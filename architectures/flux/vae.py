"""FLUX's autoencoder: images to latents of an eighth of their side, and back.

Rombach et al. 2022; reference class AutoencoderKL of diffusers, whose names the modules have.
Convolutions and norms keep their weights in float32 and compute in their input's dtype.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Step, nn
from ostro.architectures.flux.config import VAEConfig

EPS = 1e-6
OVERLAP = 4
"""Neighbouring tiles overlap by 1 / OVERLAP of their side."""


class Conv(torch.nn.Conv2d):
    def __init__(self, n_in: int, n_out: int, size: int = 3, *, stride: int = 1) -> None:
        padding = size // 2 if stride == 1 else 0
        super().__init__(n_in, n_out, size, stride=stride, padding=padding)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


class GroupNorm(torch.nn.GroupNorm):
    def __init__(self, config: VAEConfig, d: int) -> None:
        super().__init__(config.norm_num_groups, d, EPS)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float()).to(x.dtype)


class Resnet(nn.Module):
    def __init__(self, config: VAEConfig, n_in: int, n_out: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = GroupNorm(config, n_in), Conv(n_in, n_out)
        self.norm2, self.conv2 = GroupNorm(config, n_out), Conv(n_out, n_out)
        self.conv_shortcut = Conv(n_in, n_out, 1) if n_in != n_out else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        y = self.conv2(F.silu(self.norm2(y)))
        return y + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class Attention(nn.Module):
    """Single-head attention over all positions of an image."""

    def __init__(self, config: VAEConfig, d: int) -> None:
        super().__init__()
        self.group_norm = GroupNorm(config, d)
        self.qkv = nn.Linear(d, dict.fromkeys(("to_q", "to_k", "to_v"), d), bias=True)
        self.to_out = nn.ModuleList([nn.Linear(d, d, bias=True, shard="rowwise")])

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [n, d, h, w] -> [n, d, h, w]; `step` has a row for each image."""
        n, _, height, width = x.shape
        index = torch.arange(n, device=x.device).repeat_interleave(height * width)
        rows = step.rows(index)
        flat = self.group_norm(x).permute(0, 2, 3, 1).flatten(0, 2)
        q, k, v = self.qkv(flat, rows).view(n, 1, height * width, 3, -1).unbind(3)
        y = F.scaled_dot_product_attention(q, k, v).flatten(0, 2)
        y = self.to_out[0](y, rows).view(n, height, width, -1)
        return x + y.permute(0, 3, 1, 2)


class Middle(nn.Module):
    def __init__(self, config: VAEConfig, d: int) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(Resnet(config, d, d) for _ in range(2))
        self.attentions = nn.ModuleList([Attention(config, d)])

    def forward(self, x: Tensor, step: Step) -> Tensor:
        first, last = self.resnets
        return last(self.attentions[0](first(x), step))


class Downsample(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.conv = Conv(d, d, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.conv = Conv(d, d)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Stage(nn.Module):
    """Resnets of one width, followed by the modules that a subclass adds."""

    def __init__(self, config: VAEConfig, n_in: int, n_out: int, count: int) -> None:
        super().__init__()
        widths = [n_in] + [n_out] * (count - 1)
        self.resnets = nn.ModuleList(Resnet(config, width, n_out) for width in widths)

    def forward(self, x: Tensor) -> Tensor:
        lists: Any = self.children()
        for module in chain.from_iterable(lists):
            x = module(x)
        return x


class Down(Stage):
    def __init__(self, config: VAEConfig, n_in: int, n_out: int, last: bool) -> None:
        super().__init__(config, n_in, n_out, config.layers_per_block)
        self.downsamplers = nn.ModuleList([] if last else [Downsample(n_out)])


class Up(Stage):
    def __init__(self, config: VAEConfig, n_in: int, n_out: int, last: bool) -> None:
        super().__init__(config, n_in, n_out, config.layers_per_block + 1)
        self.upsamplers = nn.ModuleList([] if last else [Upsample(n_out)])


class Encoder(nn.Module):
    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        widths = config.block_out_channels
        self.conv_in = Conv(config.in_channels, widths[0])
        ends = zip((widths[0], *widths), widths, strict=False)
        last = len(widths) - 1
        self.down_blocks = nn.ModuleList(Down(config, *e, i == last) for i, e in enumerate(ends))
        self.mid_block = Middle(config, widths[-1])
        self.conv_norm_out = GroupNorm(config, widths[-1])
        self.conv_out = Conv(widths[-1], 2 * config.latent_channels)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        x = self.conv_in(x)
        for block in self.down_blocks:
            x = block(x)
        x = self.mid_block(x, step)
        return self.conv_out(F.silu(self.conv_norm_out(x)))


class Decoder(nn.Module):
    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        widths = config.block_out_channels[::-1]
        self.conv_in = Conv(config.latent_channels, widths[0])
        self.mid_block = Middle(config, widths[0])
        ends = zip((widths[0], *widths), widths, strict=False)
        last = len(widths) - 1
        self.up_blocks = nn.ModuleList(Up(config, *e, i == last) for i, e in enumerate(ends))
        self.conv_norm_out = GroupNorm(config, widths[-1])
        self.conv_out = Conv(widths[-1], config.out_channels)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        x = self.mid_block(self.conv_in(x), step)
        for block in self.up_blocks:
            x = block(x)
        return self.conv_out(F.silu(self.conv_norm_out(x)))


class VAE(nn.Module):
    """The autoencoder; latents are shifted and scaled to unit variance."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self.scale, self.shift = config.scaling_factor, config.shift_factor
        self.factor = config.factor
        self.tile = max(1, config.sample_size // config.factor)
        self.encoder, self.decoder = Encoder(config), Decoder(config)

    def encode(self, images: Tensor, noise: Tensor, step: Step) -> Tensor:
        """images [n, 3, H, W] within -1..1, noise like the latents -> sampled latents [n,
        c, h, w].
        """
        mean, logvar = self.encoder(images, step).chunk(2, 1)
        latents = mean + (0.5 * logvar.clamp(-30, 20)).exp() * noise
        return (latents - self.shift) * self.scale

    def decode(self, latents: Tensor, step: Step) -> Tensor:
        """latents [n, c, h, w] -> images [n, 3, H, W], about -1..1."""
        return self.decoder(latents / self.scale + self.shift, step)

    def tiles(self, latents: Tensor) -> int:
        """The number of tiles of `decode_tiled` for latents [n, c, h, w]."""
        height, width = latents.shape[2:]
        if max(height, width) <= self.tile:
            return 1
        return len(self.starts(height)) * len(self.starts(width))

    def starts(self, length: int) -> range:
        return range(0, length, self.tile - self.tile // OVERLAP)

    def decode_tiled(self, latents: Tensor, step: Step) -> Iterator[Tensor | None]:
        """As `decode`, in tiles of bounded size; yields None after each of several tiles, and last
        the images.

        Tiles of `tile` latents along each side overlap by a quarter, in which they are blended.
        """
        if self.tiles(latents) == 1:
            yield self.decode(latents, step)
            return
        rows: list[list[Tensor]] = []
        for top in self.starts(latents.shape[2]):
            rows.append([])
            for left in self.starts(latents.shape[3]):
                piece = latents[:, :, top : top + self.tile, left : left + self.tile]
                rows[-1].append(self.decode(piece, step))
                yield None
        yield self.join(rows)

    def join(self, rows: Sequence[Sequence[Tensor]]) -> Tensor:
        """Join decoded tiles, each blended with the tiles above and left of it."""
        fade = self.tile // OVERLAP * self.factor
        keep = self.tile * self.factor - fade
        for i, row in enumerate(rows):
            for j, tile in enumerate(row):
                if i:
                    fade_in(tile, rows[i - 1][j], 2, fade)
                if j:
                    fade_in(tile, row[j - 1], 3, fade)
        wide = [torch.cat([tile[:, :, :keep, :keep] for tile in row], 3) for row in rows]
        return torch.cat(wide, 2)


def fade_in(tile: Tensor, before: Tensor, axis: int, fade: int) -> None:
    """Blend the start of a tile, in place, with the end of the previous one along an axis."""
    size = min(tile.shape[axis], before.shape[axis], fade)
    if not size:
        return
    head, tail = tile.narrow(axis, 0, size), before.narrow(axis, -size, size)
    share = torch.arange(size, device=tile.device) / size
    share = share.to(tile.dtype).unflatten(0, (-1, 1) if axis == 2 else (1, -1))
    head.copy_(tail * (1 - share) + head * share)
