"""Rotary position embedding on CPU in C++, in one pass over the heads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ostro.core.native import ADDRESS, INT, Arg, Signature, functions, load
from ostro.core.ops.rope.naive import angles

KINDS = (ADDRESS, INT, INT, INT, INT, INT, ADDRESS, ADDRESS, INT, INT, ADDRESS)
ROPE = functions(load(Path(__file__).with_suffix(".cpp")), "rope", *KINDS)
SIGNATURE = Signature(
    "rope",
    {"an even r of at most d": lambda n: n["r"] % 2 == 0 and n["r"] <= n["d"]},
    positions=Arg("rows", torch.int64),
    table=Arg("length r", torch.float32),
    q=Arg("rows heads d", strided="rows heads"),
    k=Arg("rows kv_heads d", strided="rows kv_heads"),
)


def rope(
    q: Tensor,
    k: Tensor,
    positions: Tensor,
    table: Tensor,
    interleaved: bool = False,
    sections: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """See the package."""
    where = positions[0].contiguous()
    if sections is not None:  # combine the sections into a table with one row per token
        table = torch.cat(angles(positions, table, sections), -1)
        where = torch.arange(len(table))
    SIGNATURE(where, table, q, k)
    return rotate(q, where, table, interleaved), rotate(k, where, table, interleaved)


def rotate(x: Tensor, positions: Tensor, table: Tensor, interleaved: bool) -> Tensor:
    """Rotate x [T, h, d] by the angles of `table` [L, r] at positions [T]."""
    y = torch.empty(x.shape, dtype=x.dtype)
    ROPE[x.dtype](
        x.data_ptr(),
        *x.shape,
        *x.stride()[:2],
        positions.data_ptr(),
        table.data_ptr(),
        table.shape[1],
        interleaved,
        y.data_ptr(),
    )
    return y
