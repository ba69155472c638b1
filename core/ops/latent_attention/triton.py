"""Latent attention in Triton: a program computes a tile of rows and heads over one split of keys.

All heads attend to the same latents, so rows and heads are interchangeable: a tile has as many
heads of a row as there are, and more rows if they fit. A tile of latents is read once and stays in
shared memory for both products. `merge` of `ops.attention` combines the splits.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.core.ops.attention.tiles import Tiles, target_family
from ostro.core.ops.attention.triton import LOG2E, TENSOR_FLOAT, attention, locate_sequence, merge
from ostro.core.ops.launch import launch_parameters, row_class

if TYPE_CHECKING:
    from ostro.core.ops.attention import AttentionMetadata

PROGRAMS = 256  # split the keys until the programs fill a large GPU,
SPLITS = 64  # but into no more parts than `merge` combines quickly

# By GPU family, for 16 pairs of row and head and for more: of the sizes tried, the largest that
# compile without register spills for latents of 512 and rotated parts of 64.
TILES = {
    "sm_80": (Tiles(16, 32, 4, 3), Tiles(32, 64, 8, 2)),
    "sm_86": (Tiles(16, 32, 4, 3), Tiles(32, 32, 8, 2)),
    "sm_89": (Tiles(16, 32, 4, 3), Tiles(32, 32, 8, 2)),
    "sm_90": (Tiles(16, 32, 4, 3), Tiles(32, 64, 8, 2)),
    "sm_100": (Tiles(16, 32, 4, 3), Tiles(32, 64, 8, 2)),
    "gfx942": (Tiles(16, 32, 4, 1), Tiles(32, 16, 8, 1)),
    "interpreter": (Tiles(16, 16, 1, 1), Tiles(32, 16, 1, 1)),
}


def latent_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionMetadata, scale: float
) -> Tensor:
    """See the package. Products are computed in q's dtype and summed in float32.

    Rare cases use the kernel of `ops.attention`: GPUs without tiles here, caches of another dtype
    than q's, `full` sequences, and tensors whose last dimension is not contiguous.
    """
    rows, h, d = q.shape
    page, rank = v_cache.shape[2:]
    family, many = target_family(), h * batch.max_queries > 16
    dense = q.stride(-1) == k_cache.stride(-1) == 1 and k_cache.dtype == q.dtype
    if family not in TILES or not dense or batch.full is not None:
        return attention(q, k_cache, v_cache, batch, scale)
    single, sequences = batch.max_queries == 1, batch.lengths.shape[0]
    sizes = row_class(sequences) if single else 0, row_class(h * batch.max_queries)
    key = (str(q.dtype), d, rank, h, *sizes)
    candidates = partial(candidate_tiles, many)
    tiles = launch_parameters("latent_attention", key, TILES[family][many], candidates)
    heads = min(h, tiles.rows)
    block_q, head_blocks = tiles.rows // heads, triton.cdiv(h, heads)
    blocks = sequences if single else rows // block_q + sequences
    longest = triton.cdiv(batch.max_length, 2 * tiles.keys)
    splits = max(1, min(PROGRAMS // (blocks * head_blocks), longest, SPLITS))
    out = torch.empty(rows, h, rank, dtype=q.dtype, device=q.device)
    parts = logs = out
    if splits > 1:
        shape = (blocks, head_blocks, splits, tiles.rows)
        parts = torch.empty(*shape, rank, dtype=torch.float32, device=q.device)
        logs = torch.empty(shape, dtype=torch.float32, device=q.device)
    shared = {"GROUP": h, "HEADS": heads, "BLOCK_M": tiles.rows, "SINGLE": single}
    attend_latents[blocks, head_blocks, splits](
        q, k_cache, out, parts, logs, batch.table, batch.starts, batch.lengths,
        scale * LOG2E.value, sequences,
        q.stride(0), q.stride(1), k_cache.stride(0), k_cache.stride(2), batch.table.stride(0),
        **shared,
        RANK=rank,
        D=d,
        TAIL=max(16, triton.next_power_of_2(d - rank)),
        PAGE=page,
        BLOCK_N=tiles.keys,
        SPLIT=splits > 1,
        PRECISION="tf32x3" if family in TENSOR_FLOAT else "ieee",
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )  # fmt: skip
    if splits > 1:
        merge[blocks, head_blocks, heads * (1 if single else block_q)](
            out, parts, logs, batch.starts, None, 0, sequences, splits,
            DV=rank, VALUE=rank, SINKS=False, **shared,
        )  # fmt: skip
    return out


def candidate_tiles(many: bool) -> list[Tiles]:
    """The tiles that may be faster, for 16 pairs of row and head or for more."""
    rows, keys = ((32, 64), (16, 32, 64)) if many else ((16,), (16, 32, 64))
    return [Tiles(*size) for size in product(rows, keys, (4, 8), (1, 2, 3))]


@triton.jit(do_not_specialize=["sequences", "table_row"])
def attend_latents(
    q, cache, out, parts, logs, table, starts, lengths,
    scale, sequences, q_row, q_head, page_step, slot_step, table_row,
    GROUP: tl.constexpr, HEADS: tl.constexpr, BLOCK_M: tl.constexpr, SINGLE: tl.constexpr,
    RANK: tl.constexpr, D: tl.constexpr, TAIL: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (block of rows, block of heads, split): compute its rows of `out`, or a part of them.

    Scores are multiplied by log2(e), for exp2.
    """
    BLOCK_Q: tl.constexpr = BLOCK_M // HEADS
    local = tl.program_id(0)
    if not SPLIT:
        local = tl.num_programs(0) - 1 - local  # later rows have more keys: start them first
    s, start, first, queries = locate_sequence(starts, local, sequences, BLOCK_Q, SINGLE)
    if first >= queries:
        return
    length = tl.load(lengths + s)

    m = tl.arange(0, BLOCK_M)
    row = first + m // HEADS
    head = tl.program_id(1) * HEADS + m % HEADS
    live = (m < BLOCK_Q * HEADS) & (row < queries) & (head < GROUP)
    position = length - queries + row
    dims = tl.arange(0, RANK)
    rest = RANK + tl.arange(0, TAIL)
    source = q + (start + row).to(tl.int64)[:, None] * q_row + head[:, None] * q_head
    query = tl.load(source + dims[None, :], live[:, None], other=0.0)
    tail = tl.load(source + rest[None, :], live[:, None] & (rest < D)[None, :], other=0.0)

    high = tl.minimum(length, length - queries + first + BLOCK_Q)
    share = tl.cdiv(tl.cdiv(high, BLOCK_N), tl.num_programs(2)) * BLOCK_N
    begin = tl.program_id(2) * share
    end = tl.minimum(high, begin + share)

    best = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_M, RANK), tl.float32)
    pages = table + s.to(tl.int64) * table_row
    for at in tl.range(begin, end, BLOCK_N):
        key_at = at + tl.arange(0, BLOCK_N)
        known = key_at < end
        page = tl.load(pages + key_at // PAGE, known, other=0).to(tl.int64)
        place = (cache + page * page_step + (key_at % PAGE) * slot_step)[:, None]
        latent = tl.load(place + dims[None, :], known[:, None], other=0.0)
        inside = known[:, None] & (rest < D)[None, :]
        turned = tl.load(place + rest[None, :], inside, other=0.0)
        scores = tl.dot(query, tl.trans(latent), input_precision=PRECISION)
        scores = tl.dot(tail, tl.trans(turned), scores, input_precision=PRECISION) * scale
        visible = known[None, :] & (key_at[None, :] <= position[:, None])
        scores = tl.where(visible, scores, float("-inf"))

        raised = tl.maximum(best, tl.max(scores, 1))
        level = tl.where(raised == float("-inf"), 0.0, raised)
        weights = tl.exp2(scores - level[:, None])
        decay = tl.exp2(best - level)
        total = total * decay + tl.sum(weights, 1)
        best = raised
        sums = sums * decay[:, None]
        sums = tl.dot(weights.to(query.dtype), latent, sums, input_precision=PRECISION)

    seen = total > 0
    total = tl.where(seen, total, 1.0)
    result = sums / total[:, None]
    if SPLIT:
        tile = (local * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(2)
        part = (tile + tl.program_id(2)).to(tl.int64) * BLOCK_M + m
        tl.store(logs + part, tl.where(seen, best + tl.log2(total), float("-inf")), live)
        tl.store(parts + part[:, None] * RANK + dims[None, :], result, (live & seen)[:, None])
    else:
        target = ((start + row).to(tl.int64) * GROUP + head) * RANK
        tl.store(out + target[:, None] + dims[None, :], result, live[:, None])
