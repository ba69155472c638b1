"""The alignment of a transcript with its audio, from cross-attention weights.

A pass over a whole transcript yields the weights of the heads that follow the audio; dynamic time
warping over their mean gives each token a time. The method is that of openai/whisper (`timing.py`)
and of transformers (`WhisperGenerationMixin._extract_token_timestamps`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Step, nn
from ostro.errors import RequestError, Unsupported

if TYPE_CHECKING:
    from ostro.architectures.whisper.model import Config


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """A transcript to align: `tokens` after the tokens of `context`.

    rows: the encoder rows of the audio, without the silence after it; heads: the (layer, head) of
    the decoder whose cross attention follows the audio.
    """

    context: Sequence[int]
    tokens: Sequence[int]
    rows: int
    heads: Sequence[Sequence[int]]

    @property
    def all_tokens(self) -> list[int]:
        """The context and the tokens."""
        return [*self.context, *self.tokens]

    def check(self, config: Config) -> None:
        """Raise RequestError for an invalid field, Unsupported for heads that do not exist."""
        count, most = len(self.all_tokens), config.max_position_embeddings
        if not self.tokens or count > most:
            raise RequestError(f"the transcript has {count} tokens, expected 1..{most}")
        if not all(0 <= token < config.vocab_size for token in self.all_tokens):
            raise RequestError(f"a token is not within 0..{config.vocab_size - 1}")
        if not 1 <= self.rows <= config.max_source_positions:
            raise RequestError(f"rows={self.rows} is not within 1..{config.max_source_positions}")
        layers, heads = config.num_hidden_layers, config.num_attention_heads
        for layer, head in self.heads:
            if not (0 <= layer < layers and 0 <= head < heads):
                raise Unsupported(
                    f"generation_config.json: alignment_heads has [{layer}, {head}], but the "
                    f"decoder has {layers} layers of {heads} heads; use segment timestamps",
                    param="timestamp_granularities",
                )


def attend(attention: nn.Attention, x: Tensor, step: Step) -> Tensor:
    """Causal attention within one sequence, without a cache: x [T, d] -> [T, d]."""
    q, k, v = (heads.transpose(0, 1) for heads in attention.project(x, step))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=attention.scale)
    return attention.o_proj(y.transpose(0, 1).flatten(1), step)


def attend_across(
    attention: nn.CrossAttention, x: Tensor, states: Tensor, step: Step
) -> tuple[Tensor, Tensor]:
    """Cross attention without a cache, and its weights.

    x [T, d], encoder states [S, d] -> [T, d], weights [heads, T, S] float32.
    """
    shape = (-1, attention.head_dim)
    q = attention.q_proj(x, step).unflatten(1, shape).transpose(0, 1)
    k = attention.k_proj(states, step).unflatten(1, shape).transpose(0, 1)
    v = attention.v_proj(states, step).unflatten(1, shape).transpose(0, 1)
    weights = (q.float() @ k.float().mT * attention.scale).softmax(-1)
    y = weights.to(v.dtype) @ v
    return attention.o_proj(y.transpose(0, 1).flatten(1), step), weights


def combine(weights: Tensor, width: int) -> Tensor:
    """The weights of heads [heads, T, rows] of T tokens as one matrix [T, rows].

    Each row of the encoder is standardized over the tokens, and smoothed by a median over `width`
    rows; then the heads are averaged.
    """
    deviation, mean = torch.std_mean(weights, dim=-2, correction=0, keepdim=True)
    # A deviation is zero if there is only one token.
    standard = (weights - mean) / deviation.masked_fill(deviation == 0, 1)
    return median(standard, width).mean(0)


def median(x: Tensor, width: int) -> Tensor:
    """The median over `width` (odd) values along the last dimension, whose ends are reflected."""
    half = width // 2
    if x.shape[-1] <= half:
        return x
    windows = F.pad(x, (half, half), mode="reflect").unfold(-1, width, 1)
    return windows.sort(-1).values[..., half]
