"""Attention on CPU with stock torch operations: gathers the pages of one sequence at a time.

Sequences with more than one row use SDPA's flash kernel. The query heads of a group are its heads
and the kv heads its batch, so that no key is repeated. If there is a C++ compiler, `native` handles
decode rows, and prompts on CPUs whose SDPA is slow. Cache positions that no row attends to may
contain any values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro.core.ops.kv_write.scaled import Scaled, widen

if TYPE_CHECKING:
    from ostro.core.ops.attention import AttentionMetadata

TILE = 256  # rows per masked SDPA call: bounds the work on keys that the mask excludes


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
    """See the package. The scores of a decode row are rounded to q's dtype; the rest is float32."""
    features = (softcap, sinks, alibi)
    out = q.new_zeros(q.shape[0], q.shape[1], v_cache.shape[-1])
    for one in planned(batch, k_cache.shape[2], window):
        keys = gather(k_cache, one.blocks, one.span, q.dtype)
        values = gather(v_cache, one.blocks, one.span, q.dtype)
        if one.rows.stop - one.rows.start == 1:
            out[one.rows] = decode(q[one.rows.start], keys, values, scale, *features)
        else:
            rule = (scale, window, *features)
            prefill(q[one.rows], keys, values, out[one.rows], *rule, full=one.full)
    return out


@dataclass(slots=True)
class RowGroup:
    """Rows of one sequence and the positions that they attend to: `span` within the pages `blocks`.

    The rows are causal; if `full`, each row attends to the whole span.
    """

    rows: slice
    blocks: list[int]
    span: slice
    full: bool = False


def planned(batch: AttentionMetadata, block: int, window: int) -> list[RowGroup]:
    """Return the row groups of a batch.

    Cached in `batch.host`, if there is one, so that all layers of a step share them.
    """
    host = batch.host
    if host is None:
        full = [] if batch.full is None else batch.full.tolist()
        lists = batch.starts.tolist(), batch.lengths.tolist(), batch.table.tolist(), full
        return make_plan(*lists, block, window)
    if host.memo is None:
        host.memo = {}
    key = f"{__name__} {block} {window}"
    if key not in host.memo:
        host.memo[key] = make_plan(host.starts, host.lengths, host.blocks, host.full, block, window)
    plan: list[RowGroup] = host.memo[key]
    return plan


def make_plan(
    starts: list[int],
    lengths: list[int],
    blocks: list[list[int]],
    full: Sequence[int],
    block: int,
    window: int,
) -> list[RowGroup]:
    plan = []
    for s, length in enumerate(lengths):
        start, stop = starts[s], starts[s + 1]
        if length == 0 or start == stop:
            continue
        # The first position that the first row attends to.
        first = max(0, length - (stop - start) + 1 - window) if window > 0 else 0
        skipped = first // block  # pages before the window are not gathered
        ids = blocks[s][skipped : -(-length // block)]
        span = slice(first - skipped * block, length - skipped * block)
        plan.append(RowGroup(slice(start, stop), ids, span, bool(full and full[s])))
    return plan


def decode(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    softcap: float,
    sinks: Tensor | None,
    alibi: Tensor | None,
) -> Tensor:
    """Attend with one row q [h, d] to all keys [kv, L, d] and values [kv, L, dv] -> [h, dv]."""
    kv, length, d = keys.shape
    scores = (q.reshape(kv, -1, d) @ keys.transpose(1, 2)).float().mul_(scale)
    if softcap > 0:
        scores.div_(softcap).tanh_().mul_(softcap)
    if alibi is not None:
        scores += alibi.float().view(kv, -1, 1) * torch.arange(1 - length, 1)
    return (softmax(scores, sinks).to(values.dtype) @ values).flatten(0, 1)


def softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax of scores [..., kv, g, L] float32; the denominator includes the sink of each head."""
    if sinks is None:
        return scores.softmax(-1)
    sink = sinks.float().view(scores.shape[-3], -1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]


def gather(cache: Tensor | Scaled, ids: list[int], span: slice, dtype: torch.dtype) -> Tensor:
    """Positions `span` of the pages `ids` of a cache [blocks, kv, block, d] as [kv, L, d]."""
    if isinstance(cache, Scaled):
        elements = take(cache.bits, ids).view(cache.dtype)
        pages = widen(elements, take(cache.scales, ids))
    else:
        pages = take(cache, ids)
    return pages.to(dtype).transpose(0, 1).flatten(1, 2)[:, span]


def take(x: Tensor, ids: list[int]) -> Tensor:
    """Rows of x: a view if the ids are consecutive."""
    first = ids[0]
    if ids == list(range(first, first + len(ids))):
        return x[first : first + len(ids)]
    return x.index_select(0, torch.tensor(ids))


def prefill(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
    alibi: Tensor | None,
    *,
    full: bool = False,
) -> None:
    """The last n positions q [n, h, d] over keys [kv, L, d], values [kv, L, dv]; into out."""
    n, h, _ = q.shape
    kv, length, _ = keys.shape
    wide = (kv, h // kv, -1, -1)
    grouped = q.unflatten(1, (kv, h // kv)).permute(1, 2, 0, 3)
    result = out.unflatten(1, (kv, h // kv)).permute(1, 2, 0, 3)
    keys, values = keys[:, None].expand(wide), values[:, None].expand(wide)
    plain = softcap == 0 and sinks is None
    if plain and alibi is None and (n == length or full) and not 0 < window < length:
        sdpa = F.scaled_dot_product_attention
        result.copy_(sdpa(grouped, keys, values, is_causal=not full, scale=scale))
        return
    for start in range(0, n, TILE):
        rows = slice(start, min(start + TILE, n))
        first, last = length - n + rows.start, length - n + rows.stop
        low = max(0, first + 1 - window) if window > 0 else 0
        high = length if full else last
        seen = bias(range(first, last), range(low, high), window, alibi, kv, full)
        k, v, x = keys[:, :, low:high], values[:, :, low:high], grouped[:, :, rows]
        if plain:
            tile = F.scaled_dot_product_attention(x, k, v, attn_mask=seen.to(q.dtype), scale=scale)
        else:
            tile = spell_out(x, k, v, seen, scale, softcap, sinks)
        result[:, :, rows] = tile


def bias(
    rows: range, keys: range, window: int, alibi: Tensor | None, kv: int, full: bool
) -> Tensor:
    """The attention bias of positions `rows` for positions `keys`; -inf for masked keys.

    [rows, keys], or with ALiBi [kv, g, rows, keys], float32.
    """
    distance = torch.arange(keys.start, keys.stop) - torch.arange(rows.start, rows.stop)[:, None]
    hidden = (distance > 0) & (not full)
    if window > 0:
        hidden |= distance <= -window
    if alibi is None:
        return torch.zeros(distance.shape).masked_fill_(hidden, -torch.inf)
    slope = alibi.float().view(kv, -1, 1, 1)
    return (slope * distance).masked_fill_(hidden, -torch.inf)


def spell_out(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    seen: Tensor,
    scale: float,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    """Attention with features that SDPA lacks (softcap, sinks).

    q [kv, g, n, d], keys [kv, g, L, d]; `seen` is the result of `bias`.
    """
    scores = (q @ keys.transpose(-1, -2)).float().mul_(scale)
    if softcap > 0:
        scores.div_(softcap).tanh_().mul_(softcap)
    weights = softmax((scores + seen).transpose(0, 2).transpose(1, 2), sinks)
    return weights.transpose(1, 2).transpose(0, 2).to(values.dtype) @ values
