"""Qwen3-Next: gated delta nets, gated attention in every fourth layer, routed and shared
experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import CacheSpec, Step, nn
from ostro.architectures.llama import model as llama
from ostro.architectures.mixtral import model as mixtral
from ostro.architectures.qwen2_moe import model as qwen2_moe
from ostro.config import TextConfig, check_sizes
from ostro.errors import ConfigError
from ostro.ops import Op, causal_conv, delta_rule

SIZES = (
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "full_attention_interval",
)


@dataclass(frozen=True, kw_only=True)
class DeltaConfig(TextConfig):
    """The fields of families that mix gated delta nets with gated attention.

    Attention layers are in layer_types, by default every full_attention_interval-th layer. A
    quarter of each head is rotated unless the rope parameters have a partial_rotary_factor.
    """

    max_position_embeddings: int = 32768
    head_dim: int = 256
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    full_attention_interval: int = 4
    layer_types: tuple[str, ...] | None = None

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        return super().derive({"partial_rotary_factor": 0.25, **raw}, values)

    def check(self) -> None:
        super().check()
        for name in SIZES:
            if not 1 <= getattr(self, name) <= 65536:
                raise ConfigError(f"{name}={getattr(self, name)} is not within 1..65536")
        if self.linear_num_value_heads % self.linear_num_key_heads:
            raise ConfigError(
                f"linear_num_value_heads={self.linear_num_value_heads} is not a multiple of "
                f"linear_num_key_heads={self.linear_num_key_heads}"
            )
        types = self.layer_types
        if types is not None and len(types) != self.num_hidden_layers:
            raise ConfigError(
                f"layer_types lists {len(types)} layers, num_hidden_layers={self.num_hidden_layers}"
            )
        for kind in types or ():
            if kind not in ("full_attention", "linear_attention"):
                raise ConfigError(
                    f"layer_types names {kind!r:.80}, expected full_attention or linear_attention"
                )

    def attends(self, layer: int) -> bool:
        if self.layer_types is not None:
            return self.layer_types[layer] == "full_attention"
        return (layer + 1) % self.full_attention_interval == 0


@dataclass(frozen=True, kw_only=True)
class SharedConfig(TextConfig):
    """The fields of routed experts and a shared expert; precedes mixtral's among the bases."""

    num_local_experts: int = 512
    num_experts_per_tok: int = 10
    norm_topk_prob: bool = True
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512

    def check(self) -> None:
        super().check()
        check_sizes(self, "shared_expert_intermediate_size")


@dataclass(frozen=True, kw_only=True)
class Config(DeltaConfig, SharedConfig, mixtral.SparseConfig, llama.Config):
    """The fields of transformers' Qwen3NextConfig."""

    # The first base has this field of TextConfig without a default.
    intermediate_size: int = 5632


class Attention(nn.Attention):
    """Attention with an output gate, which is fused with the queries."""

    def __init__(self, config: llama.Config, layer: int, rope: nn.Rope) -> None:
        bias, d = config.attention_bias, config.head_dim
        super().__init__(config, layer, rope, bias=bias, out_bias=bias, qk_norm="head")
        parts = {"q_proj": 2 * self.heads * d, "k_proj": self.kv_heads * d}
        parts["v_proj"] = parts["k_proj"]
        self.qkv = nn.Linear(config.hidden_size, parts, bias=bias)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        heads = self.qkv(x, step).view(x.shape[0], -1, self.head_dim)
        q, k, v = heads.split((2 * self.heads, self.kv_heads, self.kv_heads), 1)
        q, gate = q.unflatten(1, (-1, 2)).unbind(2)
        q = self.rotate_and_write(q.contiguous(), k, v, step)
        pages = step.caches[self.layer]
        y = self.attend(q, pages.k, pages.v, pages.batch, self.scale)
        return self.o_proj((y * gate.sigmoid()).flatten(1), step)


class DeltaNet(nn.RecurrentLayer):
    """The gated delta net: projections, convolution of q, k, v, delta rule, gated norm."""

    def __init__(self, config: DeltaConfig, layer: int) -> None:
        super().__init__()
        d, self.layer = config.hidden_size, layer
        self.key_heads, self.heads = config.linear_num_key_heads, config.linear_num_value_heads
        self.dk, self.dv = config.linear_key_head_dim, config.linear_value_head_dim
        self.keys, self.values = self.key_heads * self.dk, self.heads * self.dv
        self.widths = {"q": self.keys, "k": self.keys, "v": self.values, "z": self.values}
        self.make_inputs(d)
        self.conv1d = nn.Filters(2 * self.keys + self.values, config.linear_conv_kernel_dim)
        self.A_log = nn.Parameter(torch.zeros(self.heads), requires_grad=False)
        self.dt_bias = nn.Parameter(torch.zeros(self.heads), requires_grad=False)
        self.norm = nn.RMSNorm(self.dv, config.rms_norm_eps)
        self.out_proj = nn.Linear(self.values, d, shard="rowwise")
        self.convolve = Op(causal_conv.KERNELS)
        self.rule = Op(delta_rule.KERNELS)

    @property
    def spec(self) -> CacheSpec:
        c, _, w = self.conv1d.weight.shape
        return CacheSpec(kind="recurrent", state=((c, w - 1), (self.heads, self.dk, self.dv)))

    def make_inputs(self, d: int) -> None:
        """Make the linears of `inputs`, for rows of width d."""
        self.in_proj = nn.Linear(d, {f"in_proj_{name}": n for name, n in self.widths.items()})
        self.in_proj_ba = nn.Linear(d, 2 * self.heads)

    def inputs(self, x: Tensor, step: Step) -> Sequence[Tensor]:
        """x [T, d] -> (q, k and v [T, c], z [T, v], b [T, hv], a [T, hv])."""
        ba = self.in_proj_ba(x, step).unflatten(-1, (self.key_heads, 2, -1))
        b, a = (each.flatten(1) for each in ba.unbind(2))  # grouped by key head
        x, z = self.in_proj(x, step).split((2 * self.keys + self.values, self.values), -1)
        return x, z, b, a

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [T, d] -> [T, d]."""
        x, z, b, a = self.inputs(x, step)
        view = self.view(step)
        (past, memory), layout = view.states, view.layout
        x = self.convolve(x, self.conv1d.weight[:, 0], None, past, layout, "silu")
        q, k, v = x.split((self.keys, self.keys, self.values), -1)
        q, k = (each.unflatten(-1, (self.key_heads, self.dk)) for each in (q, k))
        v, rate = v.unflatten(-1, (self.heads, self.dv)), -self.A_log.exp()
        y = self.norm(self.rule(q, k, v, b, a, rate, self.dt_bias, memory, layout))[0]
        y = y * F.silu(z.reshape(y.shape).float())
        return self.out_proj(y.to(x.dtype).flatten(1), step)


class Block(llama.Block):
    """A layer of a config with the fields of `DeltaConfig` and, with experts, `SharedConfig`."""

    net: ClassVar[type[DeltaNet]] = DeltaNet

    def attention(self, config: Any, layer: int, rope: nn.Rope) -> nn.Module:
        return Attention(config, layer, rope) if config.attends(layer) else self.net(config, layer)

    def feed_forward(self, config: Any, layer: int) -> nn.Module:
        if isinstance(config, mixtral.SparseConfig) and config.sparse(layer):
            assert isinstance(config, SharedConfig)
            return qwen2_moe.SharedMLP(config, config.shared_expert_intermediate_size)
        return super().feed_forward(config, layer)


class Model(llama.Model):
    block = Block
