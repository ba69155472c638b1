"""Attention on CPU out of stock torch ops: batched products on pages to decode, SDPA to prefill.

Sequences with more than one row gather their pages to [kv, length, d] once and go through SDPA's
flash kernel with each group of query heads as the heads and the kv heads as the batch, which
repeats no key (a causal prompt of 512 tokens, 16 heads of 128, bf16, two cores: 2.1 ms).
`cpu_decode` takes the others. Places that no row sees may hold anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro.core.ops.attention.cpu_decode import (
    Row,
    Stretch,
    decode,
    decode_alone,
    softmax,
    stretches,
)

if TYPE_CHECKING:
    from ostro.core.ops.attention import Ragged

TILE = 256  # rows that look at the same range of keys: bounds what a window or a mask wastes


def attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: Ragged,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    alibi: Tensor | None = None,
) -> Tensor:
    """See the package. Scores of a decode row are rounded to q's dtype, all else is float32."""
    plan = planned(batch, k_cache.shape[2], window, q.dtype)
    features = (softcap, sinks, alibi)
    if plan.whole:
        together = decode(q, k_cache, v_cache, plan.stretches[0], scale, *features)
        if together is not None:
            return together
    out = q.new_zeros(q.shape[0], q.shape[1], v_cache.shape[-1])
    for at in plan.stretches:
        together = decode(q[at.index], k_cache, v_cache, at, scale, *features)
        if together is not None:
            out[at.index] = together
            continue
        for row in at.rows:
            keys = gather(k_cache, row.blocks, row.span, q.dtype)
            values = gather(v_cache, row.blocks, row.span, q.dtype)
            out[row.index] = decode_alone(q[row.index], keys, values, scale, *features)
    for many in plan.prompts:
        keys = gather(k_cache, many.blocks, many.span, q.dtype)
        values = gather(v_cache, many.blocks, many.span, q.dtype)
        prefill(q[many.rows], keys, values, out[many.rows], scale, window, *features)
    return out


@dataclass(slots=True)
class Prompt:
    """Rows of one sequence that see positions `span` of the pages of `blocks`."""

    rows: slice
    blocks: list[int]
    span: slice


@dataclass(slots=True)
class Plan:
    """Who attends how: sequences with one row, and those with more.

    whole: one stretch has all rows of q, in their order.
    """

    stretches: list[Stretch]
    prompts: list[Prompt]
    whole: bool


def planned(batch: Ragged, block: int, window: int, dtype: torch.dtype) -> Plan:
    """The plan of a batch, made once per step for all layers where the host knows the layout."""
    host = batch.host
    if host is None:
        lists = batch.starts.tolist(), batch.lengths.tolist(), batch.table.tolist()
        return make_plan(*lists, block, window, dtype)
    if host.memo is None:
        host.memo = {}
    key = f"{__name__} {block} {window} {dtype}"
    if key not in host.memo:
        host.memo[key] = make_plan(host.starts, host.lengths, host.blocks, block, window, dtype)
    return host.memo[key]


def make_plan(
    starts: list[int],
    lengths: list[int],
    blocks: list[list[int]],
    block: int,
    window: int,
    dtype: torch.dtype,
) -> Plan:
    rows, prompts = [], []
    for s, length in enumerate(lengths):
        start, stop = starts[s], starts[s + 1]
        if length == 0 or start == stop:
            continue
        first = max(0, length - (stop - start) + 1 - window) if window > 0 else 0
        skipped = first // block
        ids = blocks[s][skipped : -(-length // block)]
        span = slice(first - skipped * block, length - skipped * block)
        if stop - start == 1:
            rows.append(Row(start, ids, span))
        else:
            prompts.append(Prompt(slice(start, stop), ids, span))
    found = stretches(rows, block, dtype)
    whole = len(found) == 1 and [row.index for row in found[0].rows] == list(range(starts[-1]))
    return Plan(found, prompts, whole)


def gather(cache: Tensor, ids: list[int], span: slice, dtype: torch.dtype) -> Tensor:
    """Positions `span` of the pages `ids` of a cache [blocks, kv, block, d] as [kv, L, d]."""
    first = ids[0]
    if ids == list(range(first, first + len(ids))):
        pages = cache[first : first + len(ids)]
    else:
        pages = cache.index_select(0, torch.tensor(ids))
    return pages.to(dtype).transpose(0, 1).flatten(1, 2)[:, span]


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
) -> None:
    """The last n positions q [n, h, d] over keys [kv, L, d], values [kv, L, dv]; into out."""
    n, h, _ = q.shape
    kv, length, _ = keys.shape
    wide = (kv, h // kv, -1, -1)
    grouped = q.unflatten(1, (kv, h // kv)).permute(1, 2, 0, 3)
    result = out.unflatten(1, (kv, h // kv)).permute(1, 2, 0, 3)
    keys, values = keys[:, None].expand(wide), values[:, None].expand(wide)
    plain = softcap == 0 and sinks is None
    if plain and alibi is None and n == length and not 0 < window < length:
        sdpa = F.scaled_dot_product_attention
        result.copy_(sdpa(grouped, keys, values, is_causal=True, scale=scale))
        return
    for start in range(0, n, TILE):
        rows = slice(start, min(start + TILE, n))
        first, last = length - n + rows.start, length - n + rows.stop
        low = max(0, first + 1 - window) if window > 0 else 0
        seen = bias(first, last, low, window, alibi, kv)
        k, v, x = keys[:, :, low:last], values[:, :, low:last], grouped[:, :, rows]
        if plain:
            tile = F.scaled_dot_product_attention(x, k, v, attn_mask=seen.to(q.dtype), scale=scale)
        else:
            tile = spell_out(x, k, v, seen, scale, softcap, sinks)
        result[:, :, rows] = tile


def bias(start: int, stop: int, low: int, window: int, alibi: Tensor | None, kv: int) -> Tensor:
    """What is added to the scores of rows start..stop over keys low..stop; -inf where unseen.

    [rows, keys], or with ALiBi [kv, g, rows, keys], float32.
    """
    distance = torch.arange(low, stop) - torch.arange(start, stop)[:, None]
    hidden = distance > 0
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
    """What SDPA cannot do (a soft-cap, sinks): q [kv, g, n, d] over keys [kv, g, L, d]."""
    scores = (q @ keys.transpose(-1, -2)).float().mul_(scale)
    if softcap > 0:
        scores.div_(softcap).tanh_().mul_(softcap)
    weights = softmax((scores + seen).transpose(0, 2).transpose(1, 2), sinks)
    return weights.transpose(1, 2).transpose(0, 2).to(values.dtype) @ values
