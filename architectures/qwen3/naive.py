"""Qwen3's fused q/k norm, rope and K/V cache write in plain torch, and the list of its kernels.

    norm_rope_write(q, k, v, q_weight, k_weight, eps, positions, table, pages) -> q

q [T, h, d], k and v [T, kv, d] (views of the fused linear's rows, last dimension contiguous);
q_weight, k_weight [d] float32; positions [1, T] int64; table [L, d] float32 as in `ops.rope`, half
layout, all of d rotated; pages: the `Pages` of the layer, with the cache slot of each row, negative
for rows that are not written. All values are computed in float32 and rounded once: k when written
to the cache, q when returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ostro import Kernel
from ostro.ops import naive_kv_write as kv_write
from ostro.ops import naive_rms_norm as rms_norm
from ostro.ops import naive_rope as rope
from ostro.ops import native


def rotates_whole_heads(facts: Mapping[str, Any]) -> bool:
    return bool(facts["whole"])


KERNELS = (
    Kernel(
        name="triton",
        call=f"{__package__}.kernels:norm_rope_write",
        devices=("cuda",),
        deterministic=True,
        fits=rotates_whole_heads,
    ),
    Kernel(
        name="native",
        call=f"{__package__}.native:norm_rope_write",
        devices=("cpu",),
        dtypes=native.DTYPES,
        deterministic=True,
        fits=rotates_whole_heads,
    ),
    Kernel(name="naive", call=f"{__name__}:norm_rope_write", deterministic=True),
)


def norm_rope_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    positions: Tensor,
    table: Tensor,
    pages: Any,
) -> Tensor:
    dtype = q.dtype
    q, _ = rms_norm(q.float(), q_weight, eps)
    k, _ = rms_norm(k.float(), k_weight, eps)
    q, k = rope(q, k, positions, table)
    kv_write(k, v, pages.k, pages.v, pages.batch.slots)
    return q.to(dtype)
