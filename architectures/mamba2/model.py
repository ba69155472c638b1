"""Mamba 2: a state space model without attention (Dao & Gu 2024)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import CacheSpec, Step, nn
from ostro.config import TextConfig
from ostro.errors import ConfigError
from ostro.ops import Op, causal_conv, scan


@dataclass(frozen=True, kw_only=True)
class Config(TextConfig):
    """The fields of transformers' Mamba2Config; fields of `TextConfig` are derived from them.

    The last six concern initialisation and training and do not change the forward pass.
    """

    hidden_size: int = 4096
    num_heads: int = 128
    head_dim: int = 64
    expand: int = 2
    n_groups: int = 8
    state_size: int = 128
    conv_kernel: int = 4
    use_bias: bool = False
    use_conv_bias: bool = True
    layer_norm_epsilon: float = 1e-5
    time_step_limit: tuple[float, ...] = (0.0, math.inf)
    max_position_embeddings: int = 2**20
    intermediate_size: int = 0
    num_attention_heads: int = 0
    residual_in_fp32: bool = True
    rescale_prenorm_residual: bool = False
    chunk_size: int = 256
    time_step_rank: object = "auto"
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    time_step_floor: float = 1e-4

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values["num_attention_heads"] = values.get("num_heads", cls.num_heads)
        values["intermediate_size"] = values.get("expand", cls.expand) * values.get(
            "hidden_size", cls.hidden_size
        )
        values["rms_norm_eps"] = values.get("layer_norm_epsilon", cls.layer_norm_epsilon)
        return super().derive(raw, values)

    def check(self) -> None:
        super().check()
        for name, most in (("n_groups", self.num_heads), ("state_size", 4096), ("conv_kernel", 64)):
            if not 1 <= getattr(self, name) <= most:
                raise ConfigError(f"{name}={getattr(self, name)} is not within 1..{most}")
        inner, heads, groups = self.intermediate_size, self.num_heads, self.n_groups
        if inner != heads * self.head_dim or heads % groups:
            raise ConfigError(
                f"expand * hidden_size = {inner} must be num_heads={heads} times "
                f"head_dim={self.head_dim}, and num_heads a multiple of n_groups={groups}"
            )
        if self.hidden_act not in ("silu", "swish"):
            raise ConfigError(
                f"hidden_act={self.hidden_act!r:.80} is not implemented; expected silu"
            )
        limit = self.time_step_limit
        if len(limit) != 2 or not 0 <= limit[0] <= limit[1]:
            raise ConfigError(f"time_step_limit={list(limit)[:4]} is not a minimum and a maximum")


class GatedNorm(nn.RMSNorm):
    """RMS norm of x * silu(gate), per group."""

    def __init__(self, d: int, eps: float, groups: int) -> None:
        super().__init__(d, eps)
        self.groups = groups

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """x [T, d], gate [T, d] -> [T, d]; in float32, rounded once."""
        y = (x.float() * F.silu(gate.float())).unflatten(-1, (self.groups, -1))
        y = F.rms_norm(y, y.shape[-1:], eps=self.eps).flatten(-2)
        return (y * self.weight).to(x.dtype)


class Mixer(nn.RecurrentLayer):
    """Gate, x, B, C and time step from one linear; convolution of x, B, C; scan; norm;
    projection.
    """

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        inner, heads = config.intermediate_size, config.num_heads
        self.layer, self.limit = layer, (config.time_step_limit[0], config.time_step_limit[1])
        self.shape = (heads, config.head_dim, config.state_size)
        self.groups = (config.n_groups, config.state_size)
        self.sizes = (inner, *[config.n_groups * config.state_size] * 2)
        self.widths = (inner, sum(self.sizes), heads)
        self.in_proj = nn.Linear(config.hidden_size, sum(self.widths), bias=config.use_bias)
        self.conv1d = nn.Filters(sum(self.sizes), config.conv_kernel, bias=config.use_conv_bias)
        self.A_log = nn.Parameter(torch.zeros(heads), requires_grad=False)
        self.D = nn.Parameter(torch.zeros(heads), requires_grad=False)
        self.dt_bias = nn.Parameter(torch.zeros(heads), requires_grad=False)
        self.norm = GatedNorm(inner, config.rms_norm_eps, config.n_groups)
        self.out_proj = nn.Linear(inner, config.hidden_size, bias=config.use_bias, shard="rowwise")
        self.convolve = Op(causal_conv.KERNELS)
        self.scan = Op(scan.KERNELS)

    @property
    def spec(self) -> CacheSpec:
        c, _, w = self.conv1d.weight.shape
        return CacheSpec(kind="recurrent", state=((c, w - 1), self.shape))

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [T, d] -> [T, d]."""
        z, x, dt = self.in_proj(x, step).split(self.widths, -1)
        view = self.view(step)
        (past, memory), layout = view.states, view.layout
        x = self.convolve(x, self.conv1d.weight[:, 0], self.conv1d.bias, past, layout, "silu")
        x, b, c = x.split(self.sizes, -1)
        x, b, c = (
            each.unflatten(-1, shape)
            for each, shape in ((x, self.shape[:2]), (b, self.groups), (c, self.groups))
        )
        a = -self.A_log.exp()
        y = self.scan(x, dt, a, b, c, self.D, self.dt_bias, self.limit, memory, layout)
        return self.out_proj(self.norm(y.flatten(1), z), step)


class Norm(nn.RMSNorm):
    """The norm of x + residual; the residual is float32 with residual_in_fp32, as in mamba_ssm."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.hidden_size, config.rms_norm_eps)
        self.wide = config.residual_in_fp32

    def forward(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if not self.wide or x.dtype == torch.float32:
            return super().forward(x, residual)
        y, residual = super().forward(x.float() if residual is None else residual + x)
        return y.to(x.dtype), residual


class Block(nn.Module):
    """A pre-norm block; x and the residual are separate, so that a norm can fuse their addition."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.norm = Norm(config)
        self.mixer = Mixer(config, layer)

    def forward(self, x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, Tensor]:
        x, residual = self.norm(x, residual)
        return self.mixer(x, step), residual


class Decoder(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, i) for i in range(config.num_hidden_layers))
        self.norm_f = Norm(config)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        residual = None
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        return self.norm_f(x, residual)[0]


class Model(nn.TokenModel):
    layers = ("backbone.layers",)

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.backbone = Decoder(config)
        tied = self.backbone.embeddings if config.tie_word_embeddings else None
        self.lm_head = nn.Head(config.hidden_size, config.vocab_size, tied=tied)

    def embed(self, step: Step) -> Tensor:
        return self.backbone.embeddings(step.tokens, step)

    def hidden(self, step: Step) -> Tensor:
        return self.backbone(self.embed(step), step)

    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        return self.lm_head(hidden, step)
