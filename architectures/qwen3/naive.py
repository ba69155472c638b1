"""Qwen3's way from q, k, v to attention, written out: norm each head, rotate, remember.

    norm_rope_write(q, k, v, q_weight, k_weight, eps, positions, table, pages) -> q

q [T, h, d], k and v [T, kv, d] (views of the fused linear's rows, last dimension contiguous);
q_weight, k_weight [d] float32; positions [1, T] int64; table [L, d] float32 as `ops.rope` has it,
half layout, all of d rotated; pages: the layer's `Pages`, whose slots name each row's place (none
where negative). Everything is computed in float32 and rounded once: k on its way into the cache,
q on its way out.
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
