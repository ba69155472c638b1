"""The scan of Mamba 2 on CPU: threads share sequences and heads."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ostro.ops import StateLayout, native

P, N, F = native.ADDRESS, native.INT, native.FLOAT
KINDS = (P, P, P, P, N, N, N, N, N, N, N, N, P, P, P, F, F, P, N, P, P, P, P)
SCAN = native.functions(native.load(Path(__file__).with_suffix(".cpp")), "scan", *KINDS)


def scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    limit: tuple[float, float],
    state: Tensor,
    places: StateLayout,
) -> Tensor:
    """See the package."""
    groups, n = b.shape[1:]
    out = torch.empty(x.shape, dtype=x.dtype)
    SCAN[x.dtype](
        *(each.data_ptr() for each in (x, dt, b, c)),
        *(each.stride(0) for each in (x, dt, b, c)),
        x.shape[1],
        groups,
        x.shape[2],
        n,
        *(each.data_ptr() for each in (a, d, dt_bias)),
        *limit,
        state.data_ptr(),
        len(places.before),
        *(each.data_ptr() for each in (places.starts, places.before, places.after)),
        out.data_ptr(),
    )
    return out
