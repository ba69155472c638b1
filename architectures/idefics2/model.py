"""Idefics 2: Mistral with a SigLIP encoder of images of any size, and a resampler of 64 latents
(Laurencon et al. 2024).

Reference class Idefics2ForConditionalGeneration of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Medium, Step, nn
from ostro.architectures.clip import model as clip
from ostro.architectures.clip.vision import Table, parameter
from ostro.architectures.idefics2.config import Config, Perceiver, Vision
from ostro.architectures.idefics3.model import buckets
from ostro.architectures.llama import model as llama
from ostro.architectures.llava.model import merge_features
from ostro.architectures.siglip.model import Patches


class Embeddings(nn.Module):
    """Patches with the rows of the position table at their fractions of both sides."""

    def __init__(self, config: Vision) -> None:
        super().__init__()
        d, self.side, self.size = config.hidden_size, config.side, config.patch_size
        self.patch_embedding = Patches(d, config.num_channels, self.size)
        self.position_embedding = Table(config.rows, d)

    def places(self, rows: int, columns: int) -> Tensor:
        """The rows of the position table, patch by patch."""
        down, across = buckets(rows, self.side), buckets(columns, self.side)
        return (down[:, None] * self.side + across).flatten()

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels [channels, height, width] -> [patches, d]."""
        rows = self.patch_embedding(pixels[None])[0]
        places = self.places(pixels.shape[1] // self.size, pixels.shape[2] // self.size)
        table = self.position_embedding.weight
        return rows + table[places.to(table.device)].to(rows.dtype)


class VisionTower(nn.Module):
    def __init__(self, config: Vision) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = clip.Encoder(config, causal=False)
        self.post_layernorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, images: Sequence[Tensor], step: Step) -> tuple[Tensor, list[int]]:
        """The normed last state of the patches of all images [n, d], and their counts.

        images: [channels, height, width] each; step has a row for each.
        """
        rows = [self.embeddings(image) for image in images]
        counts = [len(each) for each in rows]
        bounds = [0, *torch.tensor(counts).cumsum(0).tolist()]
        within = replace(step.rows(spread(counts, rows[0])), bounds=bounds)
        return self.post_layernorm(self.encoder(torch.cat(rows), within)[-1])[0], counts


def spread(counts: Sequence[int], like: Tensor) -> Tensor:
    """The index of each row's image, on the device of `like`."""
    index = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return index.to(like.device)


class Projection(nn.GatedMLP):
    """A gated MLP with an output of another width."""

    def __init__(self, d: int, hidden: int, out: int, act: str) -> None:
        super().__init__(d, hidden, act)
        self.down_proj = nn.Linear(hidden, out, shard="rowwise")


class Attention(nn.Module):
    """Attention of the latents to the patches of an image and to the latents."""

    def __init__(self, config: Perceiver) -> None:
        super().__init__()
        d, self.size = config.hidden_size, config.resampler_head_dim
        width, kv = config.resampler_n_heads * self.size, config.num_key_value_heads * self.size
        self.q_proj = nn.Linear(d, width)
        self.kv = nn.Linear(d, {"k_proj": kv, "v_proj": kv})
        self.o_proj = nn.Linear(width, d, shard="rowwise")

    def keys(self, context: Tensor, latents: Tensor) -> Tensor:
        """The rows that latents [latents, d] of an image attend to, with its context [n, d]."""
        return torch.cat((context, latents))

    def forward(
        self, latents: Tensor, context: Tensor, counts: Sequence[int], step: Step
    ) -> Tensor:
        """latents [images * latents, d], context [n, d] -> [images * latents, d]."""
        each = [len(latents) // len(counts)] * len(counts)
        pairs = zip(context.split(list(counts)), latents.split(each), strict=True)
        seen = [self.keys(*pair) for pair in pairs]
        sizes = [len(rows) for rows in seen]
        q = self.q_proj(latents, step.rows(spread(each, latents)))
        found = self.kv(torch.cat(seen), step.rows(spread(sizes, latents)))
        k, v = found.unflatten(1, (2, -1, self.size)).unbind(1)
        parts = zip(
            q.unflatten(1, (-1, self.size)).split(each), k.split(sizes), v.split(sizes), strict=True
        )
        y = torch.cat([attend(*part) for part in parts])
        return self.o_proj(y, step.rows(spread(each, latents)))


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one image's heads, rows [n, heads, d] -> [n, heads * d]."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    return y[0].transpose(0, 1).flatten(1)


class Layer(nn.Module):
    def __init__(self, config: Perceiver) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.rms_norm_eps
        self.input_latents_norm = nn.RMSNorm(d, eps)
        self.input_context_norm = nn.RMSNorm(d, eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(d, eps)
        self.mlp = nn.GatedMLP(d, 4 * d, config.hidden_act)

    def forward(self, x: Tensor, context: Tensor, counts: Sequence[int], step: Step) -> Tensor:
        latents = self.input_latents_norm(x)[0]
        context = self.input_context_norm(context)[0]
        y = self.self_attn(latents, context, counts, step)
        y, x = self.post_attention_layernorm(y, x)
        rows = step.rows(spread([len(x) // len(counts)] * len(counts), x))
        return x + self.mlp(y, rows)


class Resampler(nn.Module):
    def __init__(self, config: Perceiver) -> None:
        super().__init__()
        self.latents = parameter(config.resampler_n_latents, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.resampler_depth))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, context: Tensor, counts: Sequence[int], step: Step) -> Tensor:
        """The patches of all images [n, d] -> [images * latents, d]."""
        x = self.latents.to(context.dtype).repeat(len(counts), 1)
        for layer in self.layers:
            x = layer(x, context, counts, step)
        return self.norm(x)[0]


class Connector(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        text, seen = config.text, config.vision.hidden_size
        shape = seen, text.intermediate_size, text.hidden_size, text.hidden_act
        self.modality_projection = Projection(*shape)
        self.perceiver_resampler = Resampler(config.perceiver)

    def forward(self, x: Tensor, counts: Sequence[int], step: Step) -> Tensor:
        x = self.modality_projection(x, step.rows(spread(counts, x)))
        return self.perceiver_resampler(x, counts, step)


class Model(llama.Model):
    """A decoder with a vision encoder."""

    layers = ("model.layers", "vision_model.encoder.layers")

    def __init__(self, config: Config) -> None:
        super().__init__(config.text)
        self.rows = config.perceiver.resampler_n_latents
        self.vision_model = VisionTower(config.vision)
        self.connector = Connector(config)

    def encode(self, media: Sequence[Medium], step: Step) -> list[tuple[Tensor, ...]]:
        """Media hold "pixels" [tiles, 3, height, width] and "sizes" [tiles, 2], without padding."""
        tiles = [
            tile[:, :height, :width]
            for medium in media
            for tile, (height, width) in zip(
                medium.arrays["pixels"], medium.arrays["sizes"].tolist(), strict=True
            )
        ]
        numbers = [len(medium.arrays["pixels"]) for medium in media]
        rows = step.rows(spread(numbers, tiles[0]))
        x = self.connector(*self.vision_model(tiles, rows), rows)
        return [(each,) for each in x.split([self.rows * number for number in numbers])]

    def embed(self, step: Step) -> Tensor:
        return merge_features(super().embed(step), step.features)
