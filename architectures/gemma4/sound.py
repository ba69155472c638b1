"""Gemma 4's sound encoder: convolutions over a log-mel spectrogram, then conformer layers.

Reference class Gemma4AudioModel of transformers, whose attention in chunks with a mask is attention
of each row to the last `attention_context_left` - 1 rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Step, nn
from ostro.architectures.gemma4.tower import BoundedLinear
from ostro.config import ModelConfig, check_sizes
from ostro.errors import ConfigError

EPS = 1e-6
"""The epsilon of all norms but those of convolutions."""


@dataclass(frozen=True, kw_only=True)
class Config(ModelConfig):
    hidden_size: int = 1024
    num_hidden_layers: int = 12
    num_attention_heads: int = 8
    hidden_act: str = "silu"
    subsampling_conv_channels: tuple[int, ...] = (128, 32)
    conv_kernel_size: int = 5
    residual_weight: float = 0.5
    attention_chunk_size: int = 12
    attention_context_left: int = 13
    attention_context_right: int = 0
    attention_logit_cap: float = 50.0
    attention_invalid_logits_value: float = -1e9
    use_clipped_linears: bool = True
    rms_norm_eps: float = 1e-6
    gradient_clipping: float = 1e10
    output_proj_dims: int = 1536

    @property
    def window(self) -> int:
        """The rows that a row attends to, including itself."""
        return self.attention_context_left - 1

    def check(self) -> None:
        super().check()
        check_sizes(
            self,
            "hidden_size num_hidden_layers num_attention_heads conv_kernel_size "
            "attention_chunk_size attention_context_left output_proj_dims",
            "audio_config: ",
        )
        channels = self.subsampling_conv_channels
        if len(channels) != 2 or not all(0 < c < 1 << 16 for c in channels) or channels[0] < 4:
            raise ConfigError(f"audio_config: subsampling_conv_channels={list(channels)[:9]}")
        if self.hidden_size % self.num_attention_heads or self.hidden_size % 2:
            raise ConfigError(
                f"audio_config: hidden_size={self.hidden_size} is not an even multiple of "
                f"num_attention_heads={self.num_attention_heads}"
            )
        if self.attention_context_right or self.attention_chunk_size != self.window:
            raise ConfigError(
                "audio_config: only attention_context_right=0 and attention_chunk_size="
                "attention_context_left - 1 are implemented"
            )
        if self.hidden_act != "silu" or self.attention_invalid_logits_value > -1e4:
            raise ConfigError("audio_config: hidden_act or attention_invalid_logits_value")
        for name in ("residual_weight", "attention_logit_cap", "gradient_clipping"):
            if not (math.isfinite(value := getattr(self, name)) and value > 0):
                raise ConfigError(f"audio_config: {name}={value} is not a positive number")
        if not 0 <= self.rms_norm_eps < 1:
            raise ConfigError(f"audio_config: rms_norm_eps={self.rms_norm_eps} is not within 0..1")


class Kernel(nn.Module):
    """The weight of a convolution."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape), requires_grad=False)


class Subsampling(nn.Module):
    """A convolution that halves frames and bins, a layer norm over channels, and ReLU."""

    def __init__(self, n_in: int, n_out: int, eps: float) -> None:
        super().__init__()
        self.conv = Kernel(n_out, n_in, 3, 3)
        self.norm = nn.LayerNorm(n_out, eps, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [channels, frames, bins]."""
        x = F.conv2d(x[None], self.conv.weight.to(x.dtype), stride=2, padding=1)[0]
        return self.norm(x.permute(1, 2, 0))[0].relu().permute(2, 0, 1)


class SubsamplingProjection(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        first, second = config.subsampling_conv_channels
        self.layer0 = Subsampling(1, first, config.rms_norm_eps)
        self.layer1 = Subsampling(first, second, config.rms_norm_eps)
        self.input_proj_linear = nn.Linear(first // 4 * second, config.hidden_size)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [frames, bins] -> [ceil(frames / 4), d]."""
        x = self.layer1(self.layer0(x[None]))
        return self.input_proj_linear(x.permute(1, 2, 0).flatten(1), step)


class FeedForward(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        d = config.hidden_size
        self.ffw_layer_1 = BoundedLinear(config, d, 4 * d)
        self.ffw_layer_2 = BoundedLinear(config, 4 * d, d, shard="rowwise")
        self.pre_layer_norm, self.post_layer_norm = nn.RMSNorm(d, EPS), nn.RMSNorm(d, EPS)
        self.limit, self.factor = config.gradient_clipping, config.residual_weight

    def forward(self, x: Tensor, step: Step) -> Tensor:
        y = self.ffw_layer_1(self.pre_layer_norm(limited(x, self.limit))[0], step)
        y = limited(self.ffw_layer_2(F.silu(y), step), self.limit)
        return x + self.post_layer_norm(y)[0] * self.factor


class Attention(nn.Module):
    """Attention to the last rows, with a term for each distance (Dai et al. 2019)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        d, self.heads = config.hidden_size, config.num_attention_heads
        self.q_proj, self.k_proj, self.v_proj, self.post = (
            BoundedLinear(config, d, d) for _ in range(4)
        )
        self.relative_k_proj = nn.Linear(d, d)
        size = d // self.heads
        self.per_dim_scale = nn.Parameter(torch.zeros(size), requires_grad=False)
        self.window, self.cap = config.window, config.attention_logit_cap
        self.q_scale = size**-0.5 / math.log(2)
        self.k_scale = math.log(1 + math.e) / math.log(2)

    def last(self, x: Tensor) -> Tensor:
        """x [T, h, d] -> the last rows of each row, the oldest first: [T, h, d, window]."""
        return F.pad(x, (0, 0, 0, 0, self.window - 1, 0)).unfold(0, self.window, 1)

    def forward(self, x: Tensor, places: Tensor, step: Step) -> Tensor:
        """x [T, d], places [window, d]: the embeddings of distances, the largest first."""
        q, k, v = (
            project(x, step).float().view(len(x), self.heads, -1)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q = q * self.q_scale * F.softplus(self.per_dim_scale.float())
        far = self.relative_k_proj(places, step).float().view(self.window, self.heads, -1)
        scores = torch.einsum("thd,thdw->thw", q, self.last(k * self.k_scale))
        scores = scores + torch.einsum("thd,whd->thw", q, far)
        scores = torch.tanh(scores / self.cap) * self.cap
        rows = torch.arange(len(x), device=x.device)[:, None]
        before = rows + torch.arange(1 - self.window, 1, device=x.device) < 0
        weights = scores.masked_fill(before[:, None], -torch.inf).softmax(-1)
        y = torch.einsum("thw,thdw->thd", weights, self.last(v))
        return self.post(y.flatten(1).to(x.dtype), step)


class LightConvolution(nn.Module):
    """A gated linear, a causal convolution per channel, and a linear."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        d, eps, self.size = config.hidden_size, config.rms_norm_eps, config.conv_kernel_size
        self.linear_start = BoundedLinear(config, d, 2 * d)
        self.linear_end = BoundedLinear(config, d, d)
        self.depthwise_conv1d = Kernel(d, 1, self.size)
        self.pre_layer_norm, self.conv_norm = nn.RMSNorm(d, eps), nn.RMSNorm(d, eps)
        self.limit = config.gradient_clipping

    def forward(self, x: Tensor, step: Step) -> Tensor:
        y = F.glu(self.linear_start(self.pre_layer_norm(x)[0], step), -1)
        kernel = self.depthwise_conv1d.weight.to(x.dtype)
        y = F.conv1d(F.pad(y.t(), (self.size - 1, 0)), kernel, groups=len(kernel)).t()
        y = F.silu(self.conv_norm(limited(y, self.limit).contiguous())[0])
        return x + self.linear_end(y, step)


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        d, self.limit = config.hidden_size, config.gradient_clipping
        self.feed_forward1, self.feed_forward2 = FeedForward(config), FeedForward(config)
        self.self_attn, self.lconv1d = Attention(config), LightConvolution(config)
        self.norm_pre_attn, self.norm_post_attn = nn.RMSNorm(d, EPS), nn.RMSNorm(d, EPS)
        self.norm_out = nn.RMSNorm(d, EPS)

    def forward(self, x: Tensor, places: Tensor, step: Step) -> Tensor:
        x = self.feed_forward1(x, step)
        y = self.self_attn(self.norm_pre_attn(limited(x, self.limit))[0], places, step)
        x = x + self.norm_post_attn(limited(y, self.limit))[0]
        x = self.feed_forward2(self.lconv1d(x, step), step)
        return self.norm_out(limited(x, self.limit))[0]


class Tower(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.subsample_conv_projection = SubsamplingProjection(config)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.output_proj = nn.Linear(config.hidden_size, config.output_proj_dims, bias=True)
        self.window = config.window

    def forward(self, spectrum: Tensor, step: Step) -> Tensor:
        """A log-mel spectrogram [frames, bins] -> [ceil(frames / 4), output_proj_dims]."""
        x = self.subsample_conv_projection(spectrum, step)
        places = sinusoids(self.window, x.shape[1]).to(x.device, x.dtype)
        for layer in self.layers:
            x = layer(x, places, step)
        return self.output_proj(x, step)


def limited(x: Tensor, limit: float) -> Tensor:
    """x clamped to -limit..limit, or to the range of its dtype."""
    limit = min(limit, torch.finfo(x.dtype).max)
    return x.clamp(-limit, limit)


def sinusoids(count: int, d: int) -> Tensor:
    """The embeddings [count, d] of the distances count - 1, ..., 0: sines, then cosines."""
    apart = math.log(10000.0) / max(d // 2 - 1, 1)
    rates = torch.exp(torch.arange(d // 2, dtype=torch.float32) * -apart)
    angles = torch.arange(count - 1, -1, -1, dtype=torch.float32)[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), -1)
