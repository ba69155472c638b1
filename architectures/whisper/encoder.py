"""Whisper's encoder: convolutions over a log-mel spectrogram, then pre-norm layers.

Radford et al. 2022; reference class WhisperEncoder of transformers. Module paths are those of the
hub's checkpoints below `model.encoder`; other families use it as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Pair, Step, nn
from ostro.config import ModelConfig, check_sizes
from ostro.errors import ConfigError

EPS = 1e-5
STRIDE = 2
"""Frames of the spectrogram per row of the encoder."""

TRAINING = (
    "dropout activation_dropout encoder_layerdrop init_std scale_embedding max_length "
    "apply_spec_augment mask_time_prob mask_time_length mask_time_min_masks mask_feature_prob "
    "mask_feature_length mask_feature_min_masks classifier_proj_size use_weighted_layer_sum"
).split()
"""Keys that do not affect the forward pass, here and in transformers."""


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(ModelConfig):
    """`max_source_positions`: the rows of one audio window."""

    num_mel_bins: int = 80
    d_model: int = 1280
    encoder_layers: int = 32
    encoder_attention_heads: int = 20
    encoder_ffn_dim: int = 5120
    activation_function: str = "gelu"
    max_source_positions: int = 1500

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], *, allow: Sequence[str] = ()) -> Self:
        return super().from_hf(raw, allow=(*allow, *TRAINING))

    def check(self) -> None:
        super().check()
        check_sizes(
            self,
            "num_mel_bins d_model encoder_layers encoder_attention_heads encoder_ffn_dim "
            "max_source_positions",
        )
        if self.d_model % self.encoder_attention_heads:
            raise ConfigError(
                f"d_model={self.d_model} is not a multiple of "
                f"encoder_attention_heads={self.encoder_attention_heads}"
            )
        if self.activation_function != "gelu":
            raise ConfigError(
                f"activation_function={self.activation_function!r} is not implemented; expected "
                "gelu"
            )


class Convolution(nn.Module):
    """A convolution over three frames: [n, T] -> [d, ceil(T / stride)] in the input's dtype."""

    def __init__(self, n: int, d: int, stride: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(d, n, 3), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(d), requires_grad=False)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return F.conv1d(x, weight, bias, self.stride, padding=1)


def projections(d: int) -> nn.Linear:
    """Fused q, k and v. k has no bias: it would shift all scores of a query equally."""
    return nn.Linear(d, dict.fromkeys(("q_proj", "k_proj", "v_proj"), d), bias=("q_proj", "v_proj"))


class EncoderLayer(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        d = config.d_model
        self.self_attn_layer_norm = nn.LayerNorm(d, EPS)
        self.self_attn = nn.EncoderAttention(d, config.encoder_attention_heads)
        self.self_attn.qkv = projections(d)
        self.final_layer_norm = nn.LayerNorm(d, EPS)
        self.mlp = nn.MLP(d, config.encoder_ffn_dim)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        y = self.self_attn(self.self_attn_layer_norm(x)[0], step)
        y, x = self.final_layer_norm(y, x)
        return bounded(x + self.mlp(y, step))


def bounded(x: Tensor) -> Tensor:
    """Clamp float16 values that would overflow, as in the reference."""
    if x.dtype != torch.float16:
        return x
    most = torch.finfo(x.dtype).max - 1000
    return x.clamp(-most, most)


class Encoder(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        d = config.d_model
        self.conv1 = Convolution(config.num_mel_bins, d)
        self.conv2 = Convolution(d, d, STRIDE)
        self.embed_positions = nn.Embedding(config.max_source_positions, d)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.layer_norm = nn.LayerNorm(d, EPS)

    def forward(
        self, spectra: Sequence[Tensor], step: Step, rows: Sequence[int] | None = None
    ) -> list[Tensor]:
        """Log-mel spectra [num_mel_bins, frames] -> the states [ceil(frames / 2), d] of each.

        `step` has a row for each spectrum. `rows` limits the states of each, for spectra that are
        longer than their audio.
        """
        parts = [F.gelu(self.conv2(F.gelu(self.conv1(x)))).T for x in spectra]
        parts = parts if rows is None else [x[:n] for x, n in zip(parts, rows, strict=True)]
        lengths, device = [len(part) for part in parts], parts[0].device
        places = torch.cat([torch.arange(n, device=device) for n in lengths])
        owner = torch.cat([torch.full((n,), i, device=device) for i, n in enumerate(lengths)])
        here = replace(step.rows(owner), bounds=[0, *accumulate(lengths)])
        x = torch.cat(parts) + self.embed_positions(places, here)
        for layer in self.layers:
            x = layer(x, here)
        return [self.layer_norm(self.pool(part))[0] for part in x.split(lengths)]

    def pool(self, x: Tensor) -> Tensor:
        """Pool the rows [n, d] of one spectrum before the last norm."""
        return x


def layer_pairs(theirs: str, ours: str) -> tuple[Pair, ...]:
    """The names of encoder layers that differ from the module paths."""
    return (
        Pair(f"{theirs}.self_attn.out_proj", f"{ours}.self_attn.o_proj"),
        Pair(f"{theirs}.fc1", f"{ours}.mlp.fc1"),
        Pair(f"{theirs}.fc2", f"{ours}.mlp.fc2"),
    )
