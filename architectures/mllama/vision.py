"""Mllama's vision encoder: attention over the tiles of an image, in plain and then gated layers.

Reference class MllamaVisionModel of transformers. Images are padded to the largest number of tiles,
and tiles to a multiple of rows. All rows attend to the padding rows, which attend only to the rows
of the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Step, nn
from ostro.architectures.clip.vision import Patches, parameter
from ostro.architectures.mllama.config import Vision

EPS = 1e-5


class Attention(nn.EncoderAttention):
    """Attention within an image; `step.bounds` has the starts of each image and its padding."""

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [T, d] -> [T, d]."""
        q, k, v = self.qkv(x, step).view(len(x), 3, self.heads, -1).permute(1, 2, 0, 3)
        y, ends = torch.empty_like(q), step.bounds
        for start, real, stop in zip(ends[::2], ends[1::2], ends[2::2], strict=False):
            image, padding, whole = slice(start, real), slice(real, stop), slice(start, stop)
            y[:, image] = self.sdpa(q[:, image], k[:, whole], v[:, whole])
            y[:, padding] = self.sdpa(q[:, padding], k[:, image], v[:, image])
        return self.o_proj(y.transpose(0, 1).flatten(1), step)

    def sdpa(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [h, n, d] to all of k and v [h, m, d]: [h, n, d]."""
        return F.scaled_dot_product_attention(q[None], k[None], v[None], scale=self.scale)[0]


class Layer(nn.Module):
    def __init__(self, config: Vision, *, gated: bool) -> None:
        super().__init__()
        d = config.hidden_size
        self.input_layernorm = nn.LayerNorm(d, config.norm_eps)
        self.self_attn = Attention(d, config.attention_heads, bias=False)
        self.post_attention_layernorm = nn.LayerNorm(d, config.norm_eps)
        self.mlp = nn.MLP(d, config.intermediate_size)
        self.gate_attn = parameter(1) if gated else None
        self.gate_ffn = parameter(1) if gated else None

    def forward(self, x: Tensor, step: Step) -> Tensor:
        y = self.self_attn(self.input_layernorm(x)[0], step)
        x = x + (y if self.gate_attn is None else opened(self.gate_attn, y))
        y = self.mlp(self.post_attention_layernorm(x)[0], step)
        return x + (y if self.gate_ffn is None else opened(self.gate_ffn, y))


def opened(gate: Tensor, x: Tensor) -> Tensor:
    """x times the tanh of a gate."""
    return gate.tanh().to(x.dtype) * x


class Encoder(nn.Module):
    def __init__(self, config: Vision, count: int, *, gated: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, gated=gated) for _ in range(count))

    def forward(self, x: Tensor, step: Step) -> list[Tensor]:
        """x [T, d] -> the input of each layer, then the output of the last, each [T, d]."""
        states = [x]
        for layer in self.layers:
            states.append(layer(states[-1], step))
        return states


class TileEmbedding(nn.Module):
    """The embedding of a tile's index and tiling."""

    def __init__(self, config: Vision) -> None:
        super().__init__()
        self.tiles, cuts = config.max_num_tiles, len(config.supported_aspect_ratios)
        self.embedding = nn.Embedding(cuts + 1, self.tiles * config.hidden_size)
        self.gate = parameter(1)

    def forward(self, ratios: Tensor, step: Step) -> Tensor:
        """ratios [n] int64, 1 for the first tiling -> [n, tiles, d]."""
        return opened(self.gate, self.embedding(ratios, step)).unflatten(1, (self.tiles, -1))


class PositionEmbedding(nn.Module):
    """Positions within a tile, and gated positions of the tile in the image."""

    def __init__(self, config: Vision) -> None:
        super().__init__()
        self.shape = (config.max_num_tiles, config.rows, config.hidden_size)
        tiles, rows, d = self.shape
        self.gate = parameter(1)
        self.embedding = parameter(rows, d)
        cuts = len(config.supported_aspect_ratios)
        self.tile_embedding = nn.Embedding(cuts + 1, tiles * rows * d)

    def forward(self, ratios: Tensor, step: Step) -> Tensor:
        """ratios [n] -> [n, tiles, rows, d]."""
        tiles = self.tile_embedding(ratios, step).unflatten(1, self.shape)
        gate = self.gate.tanh().to(tiles.dtype)
        return (1 - gate) * self.embedding.to(tiles.dtype) + gate * tiles


class Tower(nn.Module):
    def __init__(self, config: Vision) -> None:
        super().__init__()
        d = config.hidden_size
        self.tiles, self.rows, self.padded = config.max_num_tiles, config.rows, config.padded
        self.taken = config.intermediate_layers_indices
        self.patch_embedding = Patches(d, config.num_channels, config.patch_size)
        self.class_embedding = parameter(d)
        self.gated_positional_embedding = PositionEmbedding(config)
        self.pre_tile_positional_embedding = TileEmbedding(config)
        self.post_tile_positional_embedding = TileEmbedding(config)
        self.layernorm_pre = nn.LayerNorm(d, EPS)
        self.layernorm_post = nn.LayerNorm(d, EPS)
        self.transformer = Encoder(config, config.num_hidden_layers, gated=False)
        self.global_transformer = Encoder(config, config.num_global_layers, gated=True)

    def embed(self, images: Sequence[Tensor], ratios: Tensor, step: Step) -> Tensor:
        """The input of the first layer: [n, tiles, padded, d]."""
        patches = self.patch_embedding(torch.cat(list(images)))
        x = patches.new_zeros(len(images), self.tiles, *patches.shape[1:])
        for image, mine in zip(x, patches.split([len(image) for image in images]), strict=True):
            image[: len(mine)] = mine
        x = x + self.pre_tile_positional_embedding(ratios, step)[:, :, None]
        first = self.class_embedding.to(x.dtype).expand(*x.shape[:2], 1, -1)
        x = torch.cat((first, x), 2) + self.gated_positional_embedding(ratios, step)
        return F.pad(self.layernorm_pre(x)[0], (0, 0, 0, self.padded - self.rows))

    def forward(self, images: Sequence[Tensor], ratios: Tensor, step: Step) -> list[Tensor]:
        """Images [tiles, channels, image_size, image_size] and their tilings [n] -> the rows of
        each, tile by tile, [tiles * rows, vision_output_dim]. `step` has a row per image.

        Internally the padding rows of an image follow its other rows.
        """
        x, whole = self.embed(images, ratios, step), self.tiles * self.padded
        sizes = [len(image) * self.rows for image in images]
        orders = torch.stack([self.order(len(image), x.device) for image in images])
        bounds = [i * whole + n for i, size in enumerate(sizes) for n in (0, size)]
        index = torch.arange(len(images), device=x.device)
        rows = replace(
            step.rows(index.repeat_interleave(whole)), bounds=[*bounds, len(images) * whole]
        )
        x = x.flatten(1, 2)[index[:, None], orders].flatten(0, 1)
        states = self.transformer(x, rows)
        tile = self.post_tile_positional_embedding(ratios, step)
        placed = tile[index[:, None], orders // self.padded].flatten(0, 1)
        last = self.global_transformer(self.layernorm_post(states[-1])[0] + placed, rows)[-1]
        # Meta's code takes the states that enter a layer, not those that leave it.
        middle = torch.stack([states[i] for i in self.taken], -1).flatten(1)
        out = torch.cat((last, middle), -1).split(whole)
        return [image[:size] for image, size in zip(out, sizes, strict=True)]

    def order(self, tiles: int, device: torch.device) -> Tensor:
        """The indices of the rows of an image of `tiles` tiles, followed by its padding rows."""
        padding = torch.ones(self.tiles, self.padded, dtype=torch.bool, device=device)
        padding[:tiles, : self.rows] = False
        return padding.flatten().int().argsort(stable=True)
