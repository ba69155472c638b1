"""The gated delta rule on CPU, in C++, parallel over sequences and heads."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ostro.core.native import ADDRESS, INT, Arg, Signature, functions, load
from ostro.core.ops.state_layout import StateLayout

P, N = ADDRESS, INT
KINDS = (*[P] * 5, *[N] * 9, P, P, P, N, P, P, P, P)
LIBRARY = load(Path(__file__).with_suffix(".cpp"))
DELTA_RULE = functions(LIBRARY, "delta_rule", *KINDS)
SIGNATURE = Signature(
    "delta_rule",
    {
        "as many heads for every key head": lambda n: (
            n["key_heads"] > 0 and n["heads"] % n["key_heads"] == 0
        )
    },
    state=Arg("blocks heads dk dv", torch.float32),
    before=Arg("sequences", torch.int64),
    starts=Arg("sequences+1", torch.int64),
    saved=Arg("rows", torch.int64),
    rate=Arg("heads", torch.float32),
    dt_bias=Arg("heads", torch.float32),
    q=Arg("rows key_heads dk", strided="rows"),
    k=Arg("rows key_heads dk", strided="rows"),
    v=Arg("rows heads dv", strided="rows"),
    b=Arg("rows heads", strided="rows"),
    a=Arg("rows heads", strided="rows"),
)


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    b: Tensor,
    a: Tensor,
    rate: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    places: StateLayout,
) -> Tensor:
    """See the package."""
    where = places.before, places.starts, places.saved
    SIGNATURE(state, *where, rate, dt_bias, q, k, v, b, a)
    key_heads, dk = k.shape[1:]
    out = torch.empty(v.shape, dtype=v.dtype)
    DELTA_RULE[v.dtype](
        *(each.data_ptr() for each in (q, k, v, b, a)),
        *(each.stride(0) for each in (q, k, v, b, a)),
        key_heads,
        v.shape[1],
        dk,
        v.shape[2],
        *(each.data_ptr() for each in (rate, dt_bias, state)),
        len(places.before),
        *(each.data_ptr() for each in (places.starts, places.before, places.saved)),
        out.data_ptr(),
    )
    return out
