"""Dia's transformer: bytes of text are encoded, codes are decoded frame by frame.

Nari Labs 2025; reference class DiaModel of transformers, whose names the modules have. Each frame
has one row with the text, and with guidance another row without it. Scores are not scaled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Step, nn
from ostro.architectures.dia.config import Config, DecoderConfig, EncoderConfig
from ostro.ops import Op, varlen_attention

QKV = ("q_proj", "k_proj", "v_proj")
SCALE = 1.0
"""The scale of the scores; the weights include it."""


@dataclass
class EncoderCache:
    """The cache of one decoder layer for n rows.

    keys and values [n, kv, length, d] are of earlier frames, text_keys and text_values
    [n, kv, T, d] of the text.
    """

    keys: Tensor
    values: Tensor
    text_keys: Tensor
    text_values: Tensor


class SelfAttention(nn.Module):
    """Grouped-query self-attention with rope, for encoder and decoder."""

    def __init__(self, config: EncoderConfig, rope: nn.Rope) -> None:
        super().__init__()
        d, heads, kv = config.head_dim, config.num_attention_heads, config.num_key_value_heads
        self.head_dim, self.shares = d, (heads, kv, kv)
        sizes = (d * share for share in self.shares)
        self.qkv = nn.Linear(config.hidden_size, dict(zip(QKV, sizes, strict=True)))
        self.o_proj = nn.Linear(d * heads, config.hidden_size, shard="rowwise")
        self.rope, self.scale = rope, SCALE

    def heads(self, x: Tensor, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """x [T, hidden] -> q [T, heads, d], k and v [T, kv, d]."""
        q, k, v = self.qkv(x, step).unflatten(1, (-1, self.head_dim)).split(self.shares, 1)
        return *self.rope(q, k, step.positions), v


class TextAttention(SelfAttention):
    """Bidirectional attention over a text."""

    def __init__(self, config: EncoderConfig, rope: nn.Rope) -> None:
        super().__init__(config, rope)
        self.attend = Op(varlen_attention.KERNELS, head_dim=config.head_dim)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = self.heads(x, step)
        return self.o_proj(self.attend(q, k, v, step.bounds, self.scale).flatten(1), step)


class FrameAttention(SelfAttention):
    """Causal attention over frames."""

    def forward(self, x: Tensor, memory: EncoderCache, place: int, step: Step) -> Tensor:
        q, k, v = self.heads(x, step)
        memory.keys[:, :, place], memory.values[:, :, place] = k, v
        seen = slice(place + 1)
        y = attend(q, memory.keys[:, :, seen], memory.values[:, :, seen], self.scale)
        return self.o_proj(y, step)


class CrossAttention(nn.Module):
    """Attention of frames to the text."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        d, heads = config.cross_head_dim, config.cross_num_attention_heads
        wide = d * config.cross_num_key_value_heads
        self.head_dim, self.scale = d, SCALE
        self.q_proj = nn.Linear(config.hidden_size, d * heads)
        self.kv = nn.Linear(config.cross_hidden_size, {"k_proj": wide, "v_proj": wide})
        self.o_proj = nn.Linear(d * heads, config.hidden_size, shard="rowwise")

    def cache_states(self, states: Tensor, n: int, step: Step) -> tuple[Tensor, Tensor]:
        """states [n * T, d] of n equally long texts -> keys and values [n, kv, T, d]."""
        heads = self.kv(states, step).view(n, len(states) // n, 2, -1, self.head_dim)
        keys, values = heads.permute(2, 0, 3, 1, 4)
        return keys.contiguous(), values.contiguous()

    def forward(self, x: Tensor, memory: EncoderCache, step: Step) -> Tensor:
        q = self.q_proj(x, step).unflatten(1, (-1, self.head_dim))
        return self.o_proj(attend(q, memory.text_keys, memory.text_values, self.scale), step)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """One query per row: q [n, h, d], k and v [n, kv, T, d] -> [n, h * d].

    The heads of a group are treated as queries of one head.
    """
    groups = q.unflatten(1, (k.shape[1], -1))
    return F.scaled_dot_product_attention(groups, k, v, scale=scale).flatten(1)


class EncoderLayer(nn.Module):
    def __init__(self, config: EncoderConfig, rope: nn.Rope) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.norm_eps
        self.pre_sa_norm, self.post_sa_norm = nn.RMSNorm(d, eps), nn.RMSNorm(d, eps)
        self.self_attention = TextAttention(config, rope)
        self.mlp = nn.GatedMLP(d, config.intermediate_size, config.hidden_act)

    def forward(self, x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, Tensor]:
        x, residual = self.pre_sa_norm(x, residual)
        x, residual = self.post_sa_norm(self.self_attention(x, step), residual)
        return self.mlp(x, step), residual


class DecoderLayer(nn.Module):
    def __init__(self, config: DecoderConfig, rope: nn.Rope) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.norm_eps
        self.pre_sa_norm, self.pre_ca_norm = nn.RMSNorm(d, eps), nn.RMSNorm(d, eps)
        self.pre_mlp_norm = nn.RMSNorm(d, eps)
        self.self_attention = FrameAttention(config, rope)
        self.cross_attention = CrossAttention(config)
        self.mlp = nn.GatedMLP(d, config.intermediate_size, config.hidden_act)

    def cache_states(self, states: Tensor, n: int, length: int, step: Step) -> EncoderCache:
        """See `Decoder.cache_states`."""
        attention = self.self_attention
        shape = (n, attention.shares[1], length, attention.head_dim)
        text = self.cross_attention.cache_states(states, n, step)
        return EncoderCache(states.new_zeros(shape), states.new_zeros(shape), *text)

    def forward(
        self, x: Tensor, residual: Tensor | None, memory: EncoderCache, place: int, step: Step
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.pre_sa_norm(x, residual)
        x, residual = self.pre_ca_norm(self.self_attention(x, memory, place, step), residual)
        x, residual = self.pre_mlp_norm(self.cross_attention(x, memory, step), residual)
        return self.mlp(x, step), residual


def rope_of(config: EncoderConfig) -> nn.Rope:
    return nn.Rope(config.rope_parameters, config.head_dim, config.max_position_embeddings)


class Encoder(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        rope = rope_of(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        layers = (EncoderLayer(config, rope) for _ in range(config.num_hidden_layers))
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(config.hidden_size, config.norm_eps)

    def forward(self, texts: Tensor, step: Step) -> Tensor:
        """texts [n, T] int64 -> states [n * T, d]; `step` has a row for each text."""
        n, length = texts.shape
        index = torch.arange(n, device=texts.device).repeat_interleave(length)
        positions = torch.arange(length, device=texts.device).repeat(n)[None]
        bounds = range(0, n * length + 1, length)
        rows = replace(step.rows(index), positions=positions, bounds=bounds)
        x, residual = self.embedding(texts.flatten(), rows), None
        for layer in self.layers:
            x, residual = layer(x, residual, rows)
        return self.norm(x, residual)[0]


class ChannelEmbedding(nn.Module):
    """The sum of the embeddings of a frame's codes, with one table per channel."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.size, self.channels = config.vocab_size, config.num_channels
        self.embed = nn.Embedding(self.size * self.channels, config.hidden_size)

    def forward(self, codes: Tensor, step: Step) -> Tensor:
        """codes [n, channels] int64 -> [n, d]."""
        n = len(codes)
        first = torch.arange(self.channels, device=codes.device) * self.size
        index = torch.arange(n, device=codes.device).repeat_interleave(self.channels)
        rows = self.embed((codes + first).flatten(), step.rows(index))
        return rows.unflatten(0, (n, -1)).sum(1)


class Decoder(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.rope = rope_of(config)
        self.embeddings = ChannelEmbedding(config)
        layers = (DecoderLayer(config, self.rope) for _ in range(config.num_hidden_layers))
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(config.hidden_size, config.norm_eps)

    def cache_states(self, states: Tensor, n: int, length: int, step: Step) -> list[EncoderCache]:
        """Allocate caches of `length` frames for n rows, with texts of states [n * T, d]."""
        index = torch.arange(n, device=states.device).repeat_interleave(len(states) // n)
        layers: Any = self.layers
        return [layer.cache_states(states, n, length, step.rows(index)) for layer in layers]

    def forward(self, codes: Tensor, memory: list[EncoderCache], place: int, step: Step) -> Tensor:
        """codes [n, channels] int64 of frame `place` -> states [n, d]; updates `memory`."""
        places = torch.full((1, len(codes)), place, device=codes.device)
        rows = replace(step, positions=places)
        x, residual = self.embeddings(codes, step), None
        for layer, mine in zip(self.layers, memory, strict=True):
            x, residual = layer(x, residual, mine, place, rows)
        return self.norm(x, residual)[0]


class Transformer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.encoder = Encoder(config.encoder_config)
        self.decoder = Decoder(config.decoder_config)
