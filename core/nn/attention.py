"""Grouped-query attention over the pages of a cache."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from ostro.core.cache import CacheSpec
from ostro.core.config import TextConfig
from ostro.core.nn.linear import Linear
from ostro.core.nn.norm import RMSNorm
from ostro.core.nn.rope import Rope
from ostro.core.ops import Op, attention, kv_write, varlen_attention
from ostro.core.step import Step


class CachedLayer(Module):
    """A module with a memory: `layer` is its place in `step.caches`, `spec` what it remembers."""

    layer: int

    @property
    @abstractmethod
    def spec(self) -> CacheSpec:
        """What this layer keeps of every sequence."""


class Attention(CachedLayer):
    """q, k, v out of one linear; rotate q and k; remember k and v; attend; project.

    Each keyword is a property of the attention operation: bias on q, k, v and out_bias on the
    output, qk_norm (a norm on every query and key head), window (last positions seen, 0 = all),
    softcap (on the scores, 0 = none), scale (default head_dim ** -0.5), sinks (one learned logit
    per head that takes part in the softmax and carries no value). A family that has more to do to
    q, k and v overrides `place`.
    """

    def __init__(
        self,
        config: TextConfig,
        layer: int,
        rope: Rope | None,
        *,
        bias: bool = False,
        out_bias: bool = False,
        qk_norm: bool = False,
        window: int = 0,
        softcap: float = 0.0,
        scale: float | None = None,
        sinks: bool = False,
    ) -> None:
        super().__init__()
        d, heads, kv = config.head_dim, config.num_attention_heads, config.num_key_value_heads
        self.layer, self.head_dim, self.heads, self.kv_heads = layer, d, heads, kv
        self.qkv = Linear(
            config.hidden_size,
            {"q_proj": heads * d, "k_proj": kv * d, "v_proj": kv * d},
            bias=bias,
        )
        self.o_proj = Linear(heads * d, config.hidden_size, bias=out_bias, shard="rowwise")
        self.q_norm = RMSNorm(d, config.rms_norm_eps) if qk_norm else None
        self.k_norm = RMSNorm(d, config.rms_norm_eps) if qk_norm else None
        self.sinks = Parameter(torch.zeros(heads), requires_grad=False) if sinks else None
        self.rope = rope
        self.window, self.softcap = window, softcap
        self.scale = d**-0.5 if scale is None else scale
        self.write = Op(kv_write.KERNELS)
        self.attend = Op(attention.KERNELS, head_dim=d, window=window)

    @property
    def spec(self) -> CacheSpec:
        d = self.head_dim
        return CacheSpec(heads=self.kv_heads, key_dim=d, value_dim=d, window=self.window)

    def place(self, q: Tensor, k: Tensor, v: Tensor, step: Step) -> Tensor:
        """Norm and rotate q [T, h, d] and k [T, kv, d], write k and v [T, kv, d]; return q."""
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q)[0], self.k_norm(k)[0]
        if self.rope is not None:
            q, k = self.rope(q, k, step.positions)
        pages = step.caches[self.layer]
        self.write(k, v, pages.k, pages.v, pages.batch.slots)
        return q

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [T, hidden] -> [T, hidden]."""
        heads = self.qkv(x, step).view(x.shape[0], -1, self.head_dim)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), 1)
        q = self.place(q, k, v, step)
        pages = step.caches[self.layer]
        y = self.attend(
            q,
            pages.k,
            pages.v,
            pages.batch,
            self.scale,
            window=self.window,
            softcap=self.softcap,
            sinks=self.sinks,
        )
        return self.o_proj(y.flatten(1), step)


class EncoderAttention(Module):
    """Attention of every row to all of its sequence, without a cache: encoders and towers.

    kv_heads and head_dim where they are not `heads` and d // heads; norm_eps: norms on every query
    and key head; rope by the first of a row's positions; window: only to rows less than so many
    away, 0 = all.
    """

    def __init__(
        self,
        d: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        scale: float | None = None,
        norm_eps: float | None = None,
        rope: Rope | None = None,
        window: int = 0,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.head_dim = size = head_dim or d // heads
        wide, shared = heads * size, self.kv_heads * size
        self.qkv = Linear(d, {"q_proj": wide, "k_proj": shared, "v_proj": shared}, bias=bias)
        self.o_proj = Linear(wide, d, bias=bias, shard="rowwise")
        self.q_norm = None if norm_eps is None else RMSNorm(size, norm_eps)
        self.k_norm = None if norm_eps is None else RMSNorm(size, norm_eps)
        self.rope, self.window = rope, window
        self.scale = size**-0.5 if scale is None else scale
        self.attend = Op(varlen_attention.KERNELS)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [T, d] -> [T, d]; `step.bounds` says which rows belong together."""
        heads = self.qkv(x, step).view(len(x), -1, self.head_dim)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), 1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q)[0], self.k_norm(k)[0]
        if self.rope is not None:
            q, k = self.rope(q, k, step.positions[:1])
        y = self.attend(q, k, v, step.bounds, self.scale, self.window)
        return self.o_proj(y.flatten(1), step)
