"""Attention within sequences by SDPA: one call per run of adjacent sequences of equal length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

import torch.nn.functional as F
from torch import Tensor

from ostro.core.ops.varlen_attention.naive import mask


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bounds: Sequence[int],
    scale: float,
    window: int = 0,
    causal: bool = False,
) -> Tensor:
    """See the package.

    For SDPA, the query heads of a group are the heads, and sequences times kv heads the batch.
    """
    kv = k.shape[1]
    out = q.new_empty(q.shape[0], q.shape[1], v.shape[2])
    for start, stop, length in equal_length_runs(bounds):
        shape = ((stop - start) // length, length, kv)
        here = slice(start, stop)
        queries = q[here].unflatten(1, (kv, -1)).unflatten(0, shape[:2]).permute(0, 2, 3, 1, 4)
        keys, values = (
            x[here]
            .unflatten(0, shape[:2])
            .transpose(1, 2)[:, :, None]
            .expand(-1, -1, queries.shape[2], -1, -1)
            for x in (k, v)
        )
        hides = 0 < window < length
        seen = mask(length, window, causal, q.device).to(q.dtype) if hides else None
        y = F.scaled_dot_product_attention(
            queries.flatten(0, 1),
            keys.flatten(0, 1),
            values.flatten(0, 1),
            attn_mask=seen,
            is_causal=causal and not hides,
            scale=scale,
        )
        y = y.unflatten(0, (shape[0], kv)).permute(0, 3, 1, 2, 4)
        out[here] = y.reshape(stop - start, *out.shape[1:])
    return out


def equal_length_runs(bounds: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (first row, end row, length) of each run of adjacent sequences of equal length."""
    pairs = groupby(pairwise(bounds), key=lambda pair: pair[1] - pair[0])
    for length, found in pairs:
        members = list(found)
        if length:
            yield members[0][0], members[-1][1], length
