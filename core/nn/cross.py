"""Cross attention: a decoder layer attends to encoder states in a paged cross cache."""

from __future__ import annotations

import torch
from torch import Tensor

from ostro.core.cache import CacheSpec
from ostro.core.nn.attention import CachedLayer
from ostro.core.nn.linear import Linear
from ostro.core.nn.norm import RMSNorm
from ostro.core.ops import Op, attention, kv_write
from ostro.core.step import Step


class CrossAttention(CachedLayer):
    """Attention to encoder states, whose keys and values are computed once per medium.

    `states` is the width of the encoder states, `length` the maximum rows of one medium. The output
    of rows without a medium is zero. norm_eps: RMS norm on every query and key head, as in
    MllamaTextCrossAttention.
    """

    def __init__(
        self,
        d: int,
        heads: int,
        layer: int,
        *,
        length: int,
        states: int | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        scale: float | None = None,
        bias: bool = True,
        k_bias: bool = True,
        norm_eps: float | None = None,
    ) -> None:
        super().__init__()
        self.layer, self.length = layer, length
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.head_dim = head_dim or d // heads
        states, kv_width = states or d, self.kv_heads * self.head_dim
        self.q_proj = Linear(d, heads * self.head_dim, bias=bias)
        self.k_proj = Linear(states, kv_width, bias=bias and k_bias)
        self.v_proj = Linear(states, kv_width, bias=bias)
        self.o_proj = Linear(heads * self.head_dim, d, bias=bias, shard="rowwise")
        self.q_norm = None if norm_eps is None else RMSNorm(self.head_dim, norm_eps)
        self.k_norm = None if norm_eps is None else RMSNorm(self.head_dim, norm_eps)
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.write = Op(kv_write.KERNELS)
        self.attend = Op(attention.KERNELS, head_dim=self.head_dim, window=0)

    @property
    def spec(self) -> CacheSpec:
        d = self.head_dim
        return CacheSpec(
            kind="cross", heads=self.kv_heads, key_dim=d, value_dim=d, length=self.length
        )

    def write_states(self, states: Tensor, step: Step) -> None:
        """Write keys and values of encoder states [n, states]."""
        shape = (len(states), self.kv_heads, self.head_dim)
        k = self.k_proj(states, step).view(shape)
        v = self.v_proj(states, step).view(shape)
        if self.k_norm is not None:
            k = self.k_norm(k)[0]
        pages = step.caches[self.layer]
        self.write(k, v, pages.k, pages.v, pages.batch.slots)

    def rows_with_media(self, step: Step) -> Tensor | None:
        """Mask of the rows that have a medium, [T, 1] bool; None if no row has one."""
        batch = step.caches[self.layer].batch
        if not batch.max_length:
            return None
        rows = torch.arange(len(step.tokens), dtype=batch.starts.dtype, device=batch.starts.device)
        return (batch.lengths[torch.searchsorted(batch.starts[1:], rows, right=True)] > 0)[:, None]

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [T, d] -> [T, d]."""
        q = self.q_proj(x, step).view(len(x), self.heads, self.head_dim)
        if self.q_norm is not None:
            q = self.q_norm(q)[0]
        pages = step.caches[self.layer]
        y = self.attend(q, pages.k, pages.v, pages.batch, self.scale)
        return self.o_proj(y.flatten(1), step)
