"""Batches over paged caches and recurrent states, made on the device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from tiny.states import state_layout
from torch import Tensor

from ostro.core.ops.attention import AttentionMetadata
from ostro.core.ops.state_layout import StateLayout
from ostro.plugins.conformance.kernels import DEVICE

PAGE = 16


class Heads(NamedTuple):
    """Query heads, heads of keys and values, and their dimensions."""

    q: int
    kv: int
    d: int
    dv: int


class Paged(NamedTuple):
    """The arguments of attention."""

    q: Tensor
    k: Tensor
    v: Tensor
    batch: AttentionMetadata
    scale: float


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=dtype, device=DEVICE)


def paged(
    queries: Sequence[int],
    lengths: Sequence[int],
    heads: Heads,
    dtype: torch.dtype,
    *,
    first_block: int = 1,
) -> Paged:
    """Sequences of `lengths` whose last `queries` tokens are rows.

    The blocks are in random order, and places that no sequence has hold NaN. The table uses blocks
    from `first_block` on; those before are allocated, but not written. Where dv < d, values are the
    front of the keys, as in latent attention.
    """
    width = max(-(-length // PAGE) for length in lengths) + 1
    table = torch.randperm(len(lengths) * width, device=DEVICE).view(-1, width) + first_block
    blocks = first_block + table.numel()
    k = torch.empty(blocks, heads.kv, PAGE, heads.d, dtype=dtype, device=DEVICE)
    latent = heads.dv < heads.d
    v = k[..., : heads.dv] if latent else torch.empty_like(k)
    k[first_block - 1 :], v[first_block - 1 :] = torch.nan, torch.nan
    for s, length in enumerate(lengths):
        position = torch.arange(length, device=DEVICE)
        block, place = table[s, position // PAGE], position % PAGE
        k[block, :, place] = 2 * randn(length, heads.kv, heads.d, dtype=dtype)
        if not latent:
            v[block, :, place] = randn(length, heads.kv, heads.dv, dtype=dtype)
    # As a model gives it: the front of a wider projection, so that rows are not adjacent.
    q = randn(sum(queries), heads.q + 2 * heads.kv, heads.d, dtype=dtype)[:, : heads.q]
    return Paged(q, k, v, metadata(table, queries, lengths), heads.d**-0.5)


def metadata(table: Tensor, queries: Sequence[int], lengths: Sequence[int]) -> AttentionMetadata:
    ints = {"dtype": torch.int32, "device": DEVICE}
    return AttentionMetadata(
        table=table.int(),
        starts=torch.tensor([0, *accumulate(queries)], **ints),  # type: ignore[arg-type]
        lengths=torch.tensor(lengths, **ints),  # type: ignore[arg-type]
        slots=torch.full((sum(queries),), -1, dtype=torch.int64, device=DEVICE),
        max_queries=max(queries),
        max_length=max(lengths),
    )


def states(rows: Sequence[int], *, new: bool = False) -> StateLayout:
    """The layout of sequences with so many rows: sequence i continues the state in block 2 i, and
    writes block 2 i + 1. With `new`, sequences begin without a state."""
    count = len(rows)
    before = [-1] * count if new else [2 * i for i in range(count)]
    return state_layout(rows, before, [2 * i + 1 for i in range(count)], DEVICE)
