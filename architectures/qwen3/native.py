"""Qwen3's fused q/k norm, rope and K/V cache write on CPU, in C++, in one pass over the heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ostro.architectures.qwen3 import naive
from ostro.ops import native

P, N, F = native.ADDRESS, native.INT, native.FLOAT
KINDS = (P, P, P, N, N, N, N, N, N, N, P, P, F, P, P, P, N, P, P, P)
LIBRARY = native.load(Path(__file__).with_suffix(".cpp"))
NORM_ROPE_WRITE = native.functions(LIBRARY, "norm_rope_write", *KINDS)
SIGNATURE = native.Signature(
    "norm_rope_write",
    {
        "an even d": lambda n: n["d"] % 2 == 0,
        "blocks of at least one token": lambda n: n["block"] > 0,
    },
    slots=native.Arg("rows", torch.int64),
    k_cache=native.Arg("blocks kv_heads block d"),
    v_cache=native.Arg("blocks kv_heads block d"),
    q_weight=native.Arg("d", torch.float32),
    k_weight=native.Arg("d", torch.float32),
    positions=native.Arg("axes rows", torch.int64, strided="axes"),
    table=native.Arg("length d", torch.float32),
    q=native.Arg("rows heads d", strided="rows"),
    k=native.Arg("rows kv_heads d", strided="rows"),
    v=native.Arg("rows kv_heads d", strided="rows"),
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
    """See `naive`. The heads of a row are contiguous."""
    if pages.k.dtype != q.dtype:  # the native kernel has a single dtype
        return naive.norm_rope_write(q, k, v, q_weight, k_weight, eps, positions, table, pages)
    weights = q_weight, k_weight
    SIGNATURE(pages.batch.slots, pages.k, pages.v, *weights, positions, table, q, k, v)
    out = torch.empty(q.shape, dtype=q.dtype)
    NORM_ROPE_WRITE[q.dtype](
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        *q.shape[:2],
        *k.shape[1:],
        q.stride(0),
        k.stride(0),
        v.stride(0),
        q_weight.data_ptr(),
        k_weight.data_ptr(),
        eps,
        positions.data_ptr(),
        table.data_ptr(),
        pages.batch.slots.data_ptr(),
        pages.k.shape[2],
        pages.k.data_ptr(),
        pages.v.data_ptr(),
        out.data_ptr(),
    )
    return out
