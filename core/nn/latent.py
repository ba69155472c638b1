"""Multi-head latent attention (MLA): the cache stores one small latent per token."""

from __future__ import annotations

import torch
from torch import Tensor

from ostro.core.cache import CacheSpec
from ostro.core.nn.attention import CachedLayer
from ostro.core.nn.linear import Linear
from ostro.core.nn.norm import RMSNorm
from ostro.core.nn.rope import Rope
from ostro.core.ops import Op, kv_write, latent_attention
from ostro.core.step import Step


class LatentAttention(CachedLayer):
    """Attention over a latent of `latent` dimensions and a rotated key of `rope_dim`, shared by all
    heads (DeepSeek-V2, 2024), with absorbed up-projections.

    The key of a head is k_b times the latent, so q times k_b is compared with the latent itself.
    The value is v_b times the latent, so v_b is applied to the attention output. With `q_latent`,
    queries are projected through a latent as well.
    """

    def __init__(
        self,
        d: int,
        heads: int,
        layer: int,
        rope: Rope,
        *,
        q_latent: int,
        latent: int,
        nope_dim: int,
        rope_dim: int,
        value_dim: int,
        eps: float,
        scale: float,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.layer, self.heads, self.rope, self.scale = layer, heads, rope, scale
        self.latent, self.nope_dim, self.rope_dim = latent, nope_dim, rope_dim
        q_width = heads * (nope_dim + rope_dim)
        if q_latent:
            self.q_a_proj = Linear(d, q_latent, bias=bias, shard=None)
            self.q_a_layernorm = RMSNorm(q_latent, eps)
            self.q_b_proj = Linear(q_latent, q_width)
        else:
            self.q_proj = Linear(d, q_width)
        self.q_latent = q_latent
        self.kv_a_proj_with_mqa = Linear(d, latent + rope_dim, bias=bias, shard=None)
        self.kv_a_layernorm = RMSNorm(latent, eps)
        self.k_b_proj = Linear(latent, heads * nope_dim)
        self.v_b_proj = Linear(latent, heads * value_dim)
        self.o_proj = Linear(heads * value_dim, d, bias=bias, shard="rowwise")
        self.write = Op(kv_write.KERNELS)
        self.attend = Op(latent_attention.KERNELS, head_dim=latent + rope_dim, rank=latent)

    @property
    def spec(self) -> CacheSpec:
        return CacheSpec(heads=1, key_dim=self.latent + self.rope_dim)

    def queries(self, x: Tensor, step: Step) -> Tensor:
        """x [T, d] -> [T, heads, nope_dim + rope_dim]."""
        if self.q_latent:
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x, step))[0], step)
        else:
            q = self.q_proj(x, step)
        return q.view(len(x), self.heads, -1)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [T, d] -> [T, d]."""
        q, q_rotated = self.queries(x, step).split((self.nope_dim, self.rope_dim), -1)
        latent, k_rotated = self.kv_a_proj_with_mqa(x, step).split((self.latent, self.rope_dim), -1)
        latent = self.kv_a_layernorm(latent)[0]
        q_rotated, k_rotated = self.rope(q_rotated, k_rotated[:, None], step.positions)
        key = torch.cat((latent[:, None], k_rotated), -1)
        pages = step.caches[self.layer]
        self.write(key, key[..., :0], pages.k, pages.v, pages.batch.slots)
        query = torch.cat((self.k_b_proj.matmul_t(q, step), q_rotated), -1)
        values = pages.k[..., : self.latent]
        y = self.attend(query, pages.k, values, pages.batch, self.scale)
        return self.o_proj(self.v_b_proj.matmul_h(y, step).flatten(1), step)
