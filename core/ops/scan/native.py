"""The scan of Mamba 2 on CPU, in C++, parallel over sequences and heads."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ostro.core.native import ADDRESS, FLOAT, INT, Arg, Signature, functions, load
from ostro.core.ops.state_layout import StateLayout

P, N, F = ADDRESS, INT, FLOAT
KINDS = (P, P, P, P, N, N, N, N, N, N, N, N, P, P, P, F, F, P, N, P, P, P, P)
SCAN = functions(load(Path(__file__).with_suffix(".cpp")), "scan", *KINDS)
HEADS = Arg("heads", torch.float32)
SIGNATURE = Signature(
    "scan",
    {"as many heads in every group": lambda n: n["groups"] > 0 and n["heads"] % n["groups"] == 0},
    state=Arg("blocks heads p n", torch.float32),
    before=Arg("sequences", torch.int64),
    starts=Arg("sequences+1", torch.int64),
    saved=Arg("rows", torch.int64),
    a=HEADS,
    d=HEADS,
    dt_bias=HEADS,
    x=Arg("rows heads p", strided="rows"),
    dt=Arg("rows heads", strided="rows"),
    b=Arg("rows groups n", strided="rows"),
    c=Arg("rows groups n", strided="rows"),
)


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
    where = places.before, places.starts, places.saved
    SIGNATURE(state, *where, a, d, dt_bias, x, dt, b, c)
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
        *(each.data_ptr() for each in (places.starts, places.before, places.saved)),
        out.data_ptr(),
    )
    return out
