"""Penalties in Triton: one kernel over all logits, one over the sparse additions."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ostro.core.ops.penalize import Penalties
from ostro.core.ops.rows import check_dense_rows

BLOCK = 1024


def penalize(logits: Tensor, params: Penalties) -> Tensor:
    """See the package."""
    rows, vocabulary = logits.shape
    counts, seen = params.counts, params.seen
    check_dense_rows("penalize", logits=logits, counts=counts, seen=seen)
    if counts is not None or seen is not None:
        penalties_kernel[(rows, triton.cdiv(vocabulary, BLOCK))](
            logits,
            counts if counts is not None else logits,
            seen if seen is not None else logits,
            params.repetition,
            params.presence,
            params.frequency,
            vocabulary,
            logits.stride(0),
            counts.stride(0) if counts is not None else 0,
            seen.stride(0) if seen is not None else 0,
            COUNTS=counts is not None,
            SEEN=seen is not None,
            BLOCK=BLOCK,
        )
    n = params.bias_rows.numel()
    if n:
        bias_kernel[(n,)](
            logits,
            params.bias_rows,
            params.bias_ids,
            params.bias_values,
            n,
            logits.stride(0),
            BLOCK=BLOCK,
        )
    return logits


@triton.jit
def penalties_kernel(
    logits,
    counts,
    seen,
    repetition,
    presence,
    frequency,
    vocabulary,
    logits_row,
    counts_row,
    seen_row,
    COUNTS: tl.constexpr,
    SEEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = token < vocabulary
    value = tl.load(logits + row * logits_row + token, mask=mask, other=0.0)
    count = tl.zeros((BLOCK,), tl.int32)
    if COUNTS:
        count = tl.load(counts + row * counts_row + token, mask=mask, other=0)
    occurred = count > 0
    if SEEN:
        occurred |= tl.load(seen + row * seen_row + token, mask=mask, other=0) != 0
    r = tl.load(repetition + row)
    value = tl.where(occurred, tl.where(value > 0, value / r, value * r), value)
    value -= tl.where(count > 0, tl.load(presence + row), 0.0)
    value -= tl.load(frequency + row) * count.to(tl.float32)
    tl.store(logits + row * logits_row + token, value, mask=mask)


@triton.jit(do_not_specialize=["n"])
def bias_kernel(logits, rows, ids, values, n, logits_row, BLOCK: tl.constexpr):
    """Add the sum of a token's entries, in the program of its first: deterministic, no atomics."""
    entry = tl.program_id(0)
    row = tl.load(rows + entry)
    token = tl.load(ids + entry)
    total = 0.0
    first = entry
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        same = tl.load(rows + i, mask=i < n, other=-1) == row
        same &= tl.load(ids + i, mask=i < n, other=-1) == token
        total += tl.sum(tl.where(same, tl.load(values + i, mask=i < n, other=0.0), 0.0))
        first = tl.minimum(first, tl.min(tl.where(same, i, n)))
    if first == entry:
        place = logits + row * logits_row + token
        tl.store(place, tl.load(place) + total)
