"""Attention layers: grouped-query attention with a paged KV cache, and attention of encoders."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from ostro.core.cache import CacheSpec, PagedView, RecurrentView
from ostro.core.config import TextConfig
from ostro.core.nn.linear import Linear
from ostro.core.nn.norm import RMSNorm
from ostro.core.nn.rope import Rope
from ostro.core.ops import Fused, Kernel, Op, attention, kv_write, varlen_attention
from ostro.core.step import Step


class CachedLayer(Module):
    """A module that uses the cache `step.caches[layer]`; `spec` describes the cache.

    Modules with the same `layer` are on one device.
    """

    layer: int

    @property
    @abstractmethod
    def spec(self) -> CacheSpec | None:
        """The cache that this layer needs per sequence; None if another one with the same `layer`
        writes it.
        """


class RecurrentLayer(CachedLayer):
    """A layer whose cache is a state of fixed size per sequence (Mamba, linear attention)."""

    def view(self, step: Step) -> RecurrentView:
        """The state tensors of this layer and the layout of the step's sequences in them."""
        found: RecurrentView = step.caches[self.layer]
        return found


class Attention(CachedLayer):
    """Grouped-query attention: project to q, k, v; rotate; write k and v to the cache; attend.

    bias      bias on q, k and v
    out_bias  bias on the output projection
    qk_norm   RMS norm of queries and keys before the rotation: "head" for each head (Qwen3), "all"
              over all heads (OLMo 2), "" for none
    window    attend to the last `window` positions; 0 = all
    softcap   soft cap of the scores; 0 = none
    scale     scale of the scores; default head_dim ** -0.5
    sinks     one learned logit per head that takes part in the softmax and has no value
    shared    attend to the keys and values that the attention with the same `layer` has written in
              this step, without k_proj, v_proj and k_norm (Gemma 4). Heads of keys, head_dim,
              window and rope of both are the same.
    fused     kernels that norm, rotate and write in one launch:
              `call(q, k, v, q_weight, k_weight, eps, positions, table, view)`. They are used if one
              of them fits and the cache stores floats.

    An architecture with other operations on q, k and v overrides `project` or `rotate_and_write`.
    """

    def __init__(
        self,
        config: TextConfig,
        layer: int,
        rope: Rope | None,
        *,
        bias: bool = False,
        out_bias: bool = False,
        qk_norm: Literal["", "head", "all"] = "",
        window: int = 0,
        softcap: float = 0.0,
        scale: float | None = None,
        sinks: bool = False,
        shared: bool = False,
        fused: tuple[Kernel, ...] = (),
    ) -> None:
        super().__init__()
        d, heads = config.head_dim, config.num_attention_heads
        kv = 0 if shared else config.num_key_value_heads
        self.layer, self.head_dim, self.heads, self.kv_heads = layer, d, heads, kv
        parts = {"q_proj": heads * d} | ({"k_proj": kv * d, "v_proj": kv * d} if kv else {})
        self.qkv = Linear(config.hidden_size, parts, bias=bias)
        self.o_proj = Linear(heads * d, config.hidden_size, bias=out_bias, shard="rowwise")
        widths = {"": (0, 0), "head": (d, d if kv else 0), "all": (heads * d, kv * d)}[qk_norm]
        self.q_norm, self.k_norm = (RMSNorm(w, config.rms_norm_eps) if w else None for w in widths)
        self.sinks = Parameter(torch.zeros(heads), requires_grad=False) if sinks else None
        self.rope = rope
        self.window, self.softcap = window, softcap
        self.scale = d**-0.5 if scale is None else scale
        self.write = Op(kv_write.KERNELS)
        self.attend = Op(attention.KERNELS, head_dim=d, window=window)
        self.fused: Fused | None = None
        if fused and rope is not None:
            full = rope.rule.get("partial_rotary_factor", 1.0) == 1.0
            self.fused = Fused(fused, head_dim=d, whole=full)

    @property
    def spec(self) -> CacheSpec | None:
        d, kv = self.head_dim, self.kv_heads
        return CacheSpec(heads=kv, key_dim=d, value_dim=d, window=self.window) if kv else None

    def project(self, x: Tensor, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """x [T, hidden] -> q [T, h, d], k and v [T, kv, d]; kv = 0 if they are shared."""
        heads = self.qkv(x, step).view(x.shape[0], -1, self.head_dim)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), 1)
        return q, k, v

    def rotate_and_write(self, q: Tensor, k: Tensor, v: Tensor, step: Step) -> Tensor:
        """Norm and rotate q [T, h, d] and k [T, kv, d], write k and v [T, kv, d]; return q."""
        pages: PagedView = step.caches[self.layer]
        if self.fused is not None and self.fused.on and isinstance(pages.k, Tensor):
            assert self.rope is not None and self.q_norm is not None and self.k_norm is not None
            norms = self.q_norm.weight, self.k_norm.weight, self.q_norm.eps
            rotated: Tensor = self.fused(q, k, v, *norms, *self.rope.angles(step.positions), pages)
            return rotated
        q = q if self.q_norm is None else norm_heads(self.q_norm, q)
        k = k if self.k_norm is None else norm_heads(self.k_norm, k)
        if self.rope is not None:
            q, k = self.rope(q, k, step.positions)
        if self.kv_heads:
            self.write(k, v, pages.k, pages.v, pages.batch.slots)
        return q

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [T, hidden] -> [T, hidden]."""
        q = self.rotate_and_write(*self.project(x, step), step)
        pages: PagedView = step.caches[self.layer]
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


def norm_heads(norm: RMSNorm, x: Tensor) -> Tensor:
    """Norm x [T, h, d] over each head, or over all heads if the norm has h * d weights."""
    if len(norm.weight) == x.shape[-1]:
        return norm(x)[0]
    return norm(x.flatten(1))[0].view(x.shape)


class EncoderAttention(Module):
    """Bidirectional attention within each sequence, without a cache: encoders and vision towers.

    kv_heads  default `heads`
    head_dim  default d // heads
    norm_eps  RMS norm on every query and key head
    rope      rotates by the first of a row's positions
    window    attend to rows at a distance below `window`; 0 = all
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
        q_width, kv_width = heads * size, self.kv_heads * size
        self.qkv = Linear(d, {"q_proj": q_width, "k_proj": kv_width, "v_proj": kv_width}, bias=bias)
        self.o_proj = Linear(q_width, d, bias=bias, shard="rowwise")
        self.q_norm = None if norm_eps is None else RMSNorm(size, norm_eps)
        self.k_norm = None if norm_eps is None else RMSNorm(size, norm_eps)
        self.rope, self.window = rope, window
        self.scale = size**-0.5 if scale is None else scale
        self.attend = Op(varlen_attention.KERNELS)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [T, d] -> [T, d]; `step.bounds` are the boundaries of the sequences."""
        heads = self.qkv(x, step).view(len(x), -1, self.head_dim)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), 1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q)[0], self.k_norm(k)[0]
        if self.rope is not None:
            q, k = self.rope(q, k, step.positions[:1])
        y = self.attend(q, k, v, step.bounds, self.scale, self.window)
        return self.o_proj(y.flatten(1), step)
