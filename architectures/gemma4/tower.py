"""Gemma 4's vision encoder: images of any size, axial rope, linears with bounds.

Reference class Gemma4VisionModel of transformers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from ostro import Step, nn
from ostro.config import ModelConfig, check_sizes
from ostro.errors import ConfigError
from ostro.ops import Op, act_mul, varlen_attention

Grid = tuple[int, int, int]
"""Frames, rows and columns of patches."""


@dataclass(frozen=True, kw_only=True)
class Config(ModelConfig):
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 16
    num_attention_heads: int = 12
    num_key_value_heads: int = 12
    head_dim: int = 64
    hidden_activation: str = "gelu_pytorch_tanh"
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 131072
    rope_parameters: dict[str, Any] = field(default_factory=dict)
    pooling_kernel_size: int = 3
    patch_size: int = 16
    position_embedding_size: int = 10240
    use_clipped_linears: bool = False
    standardize: bool = False

    @property
    def theta(self) -> float:
        theta = self.rope_parameters.get("rope_theta", 100.0)
        if isinstance(theta, bool) or not isinstance(theta, int | float) or not 1 < theta < 1e12:
            raise ConfigError(f"vision_config: rope_theta={theta!r:.80} is not a number above 1")
        return float(theta)

    def check(self) -> None:
        super().check()
        check_sizes(
            self,
            "hidden_size intermediate_size num_hidden_layers num_attention_heads "
            "num_key_value_heads head_dim pooling_kernel_size patch_size position_embedding_size",
            "vision_config: ",
        )
        if self.head_dim % 4 or self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"vision_config: head_dim={self.head_dim} must be a multiple of 4, and "
                f"num_attention_heads={self.num_attention_heads} of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        if not 0 <= self.rms_norm_eps < 1:
            raise ConfigError(f"vision_config: rms_norm_eps={self.rms_norm_eps} is not within 0..1")
        kind = self.rope_parameters.get("rope_type", "axial")
        if kind not in ("axial", "default") or not math.isfinite(self.theta):
            raise ConfigError(f"vision_config: rope_type={kind!r:.80} is not implemented")


class Bounded(Protocol):
    """A config of an encoder whose linears may have bounds."""

    @property
    def use_clipped_linears(self) -> bool: ...


class BoundedLinear(nn.Module):
    """A linear whose inputs and outputs are clamped to bounds of the checkpoint."""

    input_min: Tensor
    input_max: Tensor
    output_min: Tensor
    output_max: Tensor

    def __init__(self, config: Bounded, n_in: int, n_out: int, **more: Any) -> None:
        super().__init__()
        self.linear, self.bounded = nn.Linear(n_in, n_out, **more), config.use_clipped_linears
        if self.bounded:
            for name in ("input", "output"):
                for end, bound in (("min", -math.inf), ("max", math.inf)):
                    parameter = nn.Parameter(torch.tensor(bound), requires_grad=False)
                    setattr(self, f"{name}_{end}", parameter)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [T, n_in] -> [T, n_out]."""
        if not self.bounded:
            return self.linear(x, step)
        y = self.linear(x.clamp(self.input_min, self.input_max), step)
        return y.clamp(self.output_min, self.output_max)


class Attention(nn.Module):
    """Attention within a frame; the scores are not scaled."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        d, size, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
        q_width, kv_width = config.num_attention_heads * size, config.num_key_value_heads * size
        self.head_dim, self.theta = size, config.theta
        self.q_proj = BoundedLinear(config, d, q_width)
        self.k_proj = BoundedLinear(config, d, kv_width)
        self.v_proj = BoundedLinear(config, d, kv_width)
        self.o_proj = BoundedLinear(config, q_width, d, shard="rowwise")
        self.q_norm, self.k_norm = nn.RMSNorm(size, eps), nn.RMSNorm(size, eps)
        self.v_norm = nn.RMSNorm(size, eps, weight=False)
        self.attend = Op(varlen_attention.KERNELS)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate the halves of heads x [T, h, d] by positions [2, T]: columns, then rows."""
        size = self.head_dim // 2
        powers = torch.arange(0, size, 2, dtype=torch.float32, device=x.device) / size
        angles = positions.t()[:, None, :, None].float() / self.theta**powers
        cos, sin = angles.cos(), angles.sin()
        a, b = x.float().unflatten(-1, (2, 2, -1)).unbind(3)
        return torch.stack((a * cos - b * sin, b * cos + a * sin), 3).flatten(2).to(x.dtype)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [T, d] -> [T, d]; `step.positions` [2, T] are columns and rows."""
        q, k, v = (
            project(x, step).view(len(x), -1, self.head_dim)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q = self.rotate(self.q_norm(q)[0], step.positions)
        k = self.rotate(self.k_norm(k)[0], step.positions)
        y = self.attend(q, k, self.v_norm(v)[0], step.bounds, 1.0)
        return self.o_proj(y.flatten(1), step)


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        d, hidden = config.hidden_size, config.intermediate_size
        self.gate_proj = BoundedLinear(config, d, hidden)
        self.up_proj = BoundedLinear(config, d, hidden)
        self.down_proj = BoundedLinear(config, hidden, d, shard="rowwise")
        # for its activation alone: gate and up have bounds of their own
        self.act = nn.GatedMLP(1, 1, config.hidden_activation).act
        self.act_mul = Op(act_mul.KERNELS)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        gate_up = torch.cat((self.gate_proj(x, step), self.up_proj(x, step)), -1)
        return self.down_proj(self.act_mul(gate_up, self.act), step)


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(d, eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(d, eps)
        self.pre_feedforward_layernorm = nn.RMSNorm(d, eps)
        self.mlp = MLP(config)
        self.post_feedforward_layernorm = nn.RMSNorm(d, eps)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        y = self.self_attn(self.input_layernorm(x)[0], step)
        x = x + self.post_attention_layernorm(y)[0]
        y = self.mlp(self.pre_feedforward_layernorm(x)[0], step)
        return x + self.post_feedforward_layernorm(y)[0]


class PatchEmbedder(nn.Module):
    """Patches times a matrix, plus a learned embedding of the column and one of the row."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        d, places = config.hidden_size, config.position_embedding_size
        self.input_proj = nn.Linear(3 * config.patch_size**2, d)
        table = torch.zeros(2, places, d)
        self.position_embedding_table = nn.Parameter(table, requires_grad=False)

    def forward(self, patches: Tensor, step: Step) -> Tensor:
        """patches [T, 3 * size ** 2] within 0..1 -> [T, d]."""
        columns, rows = step.positions
        table = self.position_embedding_table
        places = table[0, columns] + table[1, rows]
        return self.input_proj(2 * (patches - 0.5), step) + places.to(patches.dtype)


class Encoder(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))


class Tower(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        d = config.hidden_size
        self.cell, self.factor = config.pooling_kernel_size, d**0.5
        self.patch_embedder = PatchEmbedder(config)
        self.encoder = Encoder(config)
        self.standardize = config.standardize
        if self.standardize:
            self.std_bias = nn.Parameter(torch.zeros(d), requires_grad=False)
            self.std_scale = nn.Parameter(torch.ones(d), requires_grad=False)

    def forward(self, patches: Tensor, grids: Sequence[Grid], step: Step) -> Tensor:
        """Patches [T, k] of consecutive media -> the means of their cells [T / cell ** 2, d]."""
        positions = torch.cat([places(grid) for grid in grids], 1).to(patches.device)
        frames = [h * w for t, h, w in grids for _ in range(t)]
        step = replace(step, positions=positions, bounds=[0, *accumulate(frames)])
        x = self.patch_embedder(patches, step)
        for layer in self.encoder.layers:
            x = layer(x, step)
        sizes = [math.prod(grid) for grid in grids]
        pooled = [self.pool(*each) for each in zip(x.split(sizes), grids, strict=True)]
        y = torch.cat(pooled).to(x.dtype).float() * self.factor
        if self.standardize:
            y = (y - self.std_bias) * self.std_scale
        return y.to(x.dtype)

    def pool(self, x: Tensor, grid: Grid) -> Tensor:
        """The means of cells of x [t * h * w, d], in float32."""
        t, h, w = grid
        n = self.cell
        cells = x.float().view(t, h // n, n, w // n, n, -1)
        return cells.mean((2, 4)).flatten(0, 2)


def places(grid: Grid) -> Tensor:
    """The column and row of each patch: [2, t * h * w] int64."""
    t, h, w = grid
    rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    return torch.stack((columns.flatten(), rows.flatten())).repeat(1, t)
