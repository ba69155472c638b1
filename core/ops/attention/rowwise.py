"""Batch-invariant attention in plain torch, one row at a time; slow.

Scores, softmax and weighted sum of a row cover exactly the keys that it attends to. The shapes of
these operations depend on the position of the row only, so its bits depend neither on other rows
nor on the size of prefill chunks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ostro.core.ops.attention.naive import attend, gather_pages
from ostro.core.ops.kv_write.scaled import Scaled

if TYPE_CHECKING:
    from ostro.core.ops.attention import AttentionMetadata


def attention(
    q: Tensor,
    k_cache: Tensor | Scaled,
    v_cache: Tensor | Scaled,
    batch: AttentionMetadata,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    alibi: Tensor | None = None,
) -> Tensor:
    """See the package. Computes in float32."""
    starts, lengths = batch.starts.tolist(), batch.lengths.tolist()
    full = [0] * len(lengths) if batch.full is None else batch.full.tolist()
    out = q.new_zeros(q.shape[0], q.shape[1], v_cache.shape[-1])
    for s, length in enumerate(lengths):
        keys, values = (gather_pages(cache, batch.table[s], length) for cache in (k_cache, v_cache))
        last = length - (starts[s + 1] - starts[s]) + 1
        for row in range(starts[s], starts[s + 1] if length else starts[s]):
            stop = last + row - starts[s]
            first = max(0, stop - window) if window > 0 else 0
            seen = slice(first, length if full[s] else stop)
            k, v = keys[:, seen].contiguous(), values[:, seen].contiguous()
            out[row] = attend(q[row : row + 1], k, v, scale, 0, softcap, sinks, alibi)[0].to(
                q.dtype
            )
    return out
