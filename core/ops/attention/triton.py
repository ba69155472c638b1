"""Paged attention in Triton: one kernel for prefill and decode, and one that merges split keys.

A program of `attend` computes a tile of BLOCK_M rows: query rows times the query heads that share a
kv head. It loops over the keys that the tile attends to, BLOCK_N at a time, with an online softmax
(Milakov and Gimelshein 2018; Dao et al. 2022). If every sequence has one row, the keys are split
among several programs, and `merge` combines the parts by their log-sum-exps (Dao et al. 2023,
"Flash-Decoding"). Grids depend on T, B, heads, `max_queries` and `max_length` alone, not on the
values of device tensors, so that a launch can be captured; programs without work return at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.core.errors import Unsupported
from ostro.core.ops.attention.tiles import Tiles, candidate_tiles, choose_tiles, target_family
from ostro.core.ops.kv_write.scaled import Scaled, parts_of
from ostro.core.ops.launch import launch_parameters, row_class

if TYPE_CHECKING:
    from ostro.core.ops.attention import AttentionMetadata

LOG2E = tl.constexpr(math.log2(math.e))
RAISE = tl.constexpr(64.0)  # factor that keeps scaled softmax weights out of float16's subnormals
PROGRAMS = 256  # split decode until the programs fill a large GPU about twice,
SPLITS = 32  # but into no more parts than `merge` combines at once
SEGMENT = 2048  # positions per split if the result must not depend on the batch
WORKSPACE = 64 << 20  # bytes of float32 parts that a deterministic call allocates at a time
NO_FLOAT8 = ("sm_75", "sm_80", "sm_86", "interpreter")
TENSOR_FLOAT = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100")  # float32 as three tf32 products


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
    *,
    deterministic: bool = False,
) -> Tensor:
    """See the package.

    q, k_cache and v_cache may be strided views whose last dimension is contiguous. The products are
    computed in q's dtype, to which keys and values are cast, and summed in float32.

    `deterministic`: the bits of a row depend neither on other rows of the batch nor on the chunks
    of its prompt. Tiles have one shape for prefill and decode and start at multiples of it, splits
    start at multiples of SEGMENT, and `merge` always combines the parts, in order of position. A
    tile or part that a row does not attend to does not change its result.
    """
    rows, h, d = q.shape
    page, dv = v_cache.shape[2:]
    family = target_family()
    (keys, k_scales), (values, v_scales) = parts_of(k_cache), parts_of(v_cache)
    plan = plan_launch(q, keys, values, batch, family, deterministic)
    out = torch.empty(rows, h, dv, dtype=q.dtype, device=q.device)
    parts = logs = out
    if plan.split:
        shape = (min(plan.chunk, plan.blocks), plan.head_blocks, plan.splits, plan.tiles.rows)
        parts = torch.empty(*shape, dv, dtype=torch.float32, device=q.device)
        logs = torch.empty(shape, dtype=torch.float32, device=q.device)
    if keys.dtype == torch.float8_e4m3fn and family in NO_FLOAT8:  # `widen` decodes the bytes
        keys, values = keys.view(torch.uint8), values.view(torch.uint8)
    sequences = batch.lengths.shape[0]
    # tl.arange takes powers of two, tl.dot at least 16: d is split into HEAD + TAIL.
    head = max(16, 1 << (d.bit_length() - 1))
    shared = {
        "DV": dv,
        "VALUE": max(16, triton.next_power_of_2(dv)),
        "GROUP": plan.group,
        "HEADS": plan.heads,
        "BLOCK_M": plan.tiles.rows,
        "SINGLE": plan.single,
        "SINKS": sinks is not None,
    }
    for first in range(0, plan.blocks, plan.chunk):
        count = min(plan.chunk, plan.blocks - first)
        attend[count, plan.head_blocks, plan.splits](
            q, keys, values, k_scales, v_scales, out, parts, logs,
            batch.table, batch.starts, batch.lengths, batch.full, sinks, alibi,
            scale * LOG2E.value * (2 / softcap if softcap > 0 else 1),
            softcap * LOG2E.value, window, first, sequences,
            q.stride(0), q.stride(1), *keys.stride()[:3], *values.stride()[:3],
            batch.table.stride(0),
            **shared,
            D=d,
            HEAD=head,
            TAIL=max(16, triton.next_power_of_2(d - head)) if d > head else 0,
            PAGE=page,
            BLOCK_N=plan.tiles.keys,
            SEGMENT=SEGMENT if deterministic else 0,
            SPLIT=plan.split,
            WINDOW=window > 0,
            SOFTCAP=softcap > 0,
            ALIBI=alibi is not None,
            FULL=batch.full is not None,
            SCALED=k_scales is not None,
            PRECISION="tf32x3" if family in TENSOR_FLOAT else "ieee",
            num_warps=plan.tiles.warps,
            num_stages=plan.tiles.stages,
        )  # fmt: skip
        if plan.split:
            merge[count, plan.head_blocks, plan.heads * (1 if plan.single else plan.block_q)](
                out, parts, logs, batch.starts, sinks, first, sequences, plan.splits, **shared
            )
    return out


attention_deterministic = partial(attention, deterministic=True)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The grid of a call: blocks of query rows, blocks of heads, and splits of the keys.

    A program computes block_q rows of `heads` query heads of one kv head; a `group` of more query
    heads has several blocks. If `split`, parts are written for `chunk` blocks at a time and merged.
    """

    tiles: Tiles
    group: int
    heads: int
    block_q: int
    head_blocks: int
    blocks: int
    single: bool
    splits: int
    split: bool
    chunk: int


def plan_launch(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionMetadata,
    family: str,
    deterministic: bool,
) -> LaunchPlan:
    rows, h, d = q.shape
    kv, _, dv = v_cache.shape[1:]
    if h % kv or any(x.stride(-1) != 1 for x in (q, k_cache, v_cache)):
        raise Unsupported(
            f"attention: {h} query heads over {kv} kv heads, strides {q.stride()}, "
            f"{k_cache.stride()}, {v_cache.stride()}; query heads must be a multiple of kv heads "
            "and the last dimension dense; use the naive kernel"
        )
    sequences, group, single = batch.lengths.shape[0], h // kv, batch.max_queries == 1
    wide = deterministic or group * batch.max_queries > 16
    tiles = choose_tiles(family, q.dtype, k_cache.dtype, max(d, dv), wide)
    if not deterministic and q.dtype != torch.float32:
        sizes = row_class(sequences) if single else 0, row_class(group * batch.max_queries)
        key = (str(q.dtype), str(k_cache.dtype), d, dv, group, kv, *sizes)
        candidates = partial(candidate_tiles, tiles, wide)
        tiles = launch_parameters("attention", key, tiles, candidates)
    heads = min(group, tiles.rows)
    head_blocks = kv * triton.cdiv(group, heads)
    # An upper bound from shapes alone: each sequence may end in one partial block.
    blocks = sequences if single else rows // (tiles.rows // heads) + sequences

    splits, chunk = 1, blocks
    if deterministic:
        splits = triton.cdiv(batch.max_length, SEGMENT)
        chunk = max(1, WORKSPACE // (4 * head_blocks * splits * tiles.rows * dv))
    elif single:
        longest = triton.cdiv(batch.max_length, 2 * tiles.keys)
        splits = max(1, min(PROGRAMS // (sequences * head_blocks), longest, SPLITS))
    return LaunchPlan(
        tiles=tiles,
        group=group,
        heads=heads,
        block_q=tiles.rows // heads,
        head_blocks=head_blocks,
        blocks=blocks,
        single=single,
        splits=splits,
        split=deterministic or splits > 1,
        chunk=chunk,
    )


@triton.jit
def locate_sequence(starts, block, sequences, BLOCK_Q: tl.constexpr, SINGLE: tl.constexpr):
    """Find the sequence of a block of BLOCK_Q query rows by binary search.

    Returns (sequence, its start, the block's first row in it, its number of rows). Sequence s has
    the blocks from starts[s] // BLOCK_Q + s on, at least as many as it needs.
    """
    low = block
    if not SINGLE:
        low = 0
        high = sequences
        while high - low > 1:
            middle = (low + high) // 2
            if tl.load(starts + middle) // BLOCK_Q + middle <= block:
                low = middle
            else:
                high = middle
    start = tl.load(starts + low)
    queries = tl.load(starts + low + 1) - start
    first = 0
    if not SINGLE:
        first = (block - start // BLOCK_Q - low) * BLOCK_Q
    return low, start, first, queries


@triton.jit
def widen(x, like):
    """Cast cache elements; uint8 is float8_e4m3fn on targets without that type."""
    if x.dtype == tl.uint8:
        # As float16, these bits have one more exponent bit: the value is 2 ** 8 times too small.
        bits = ((x & 0x80).to(tl.uint16) << 8) | ((x & 0x7F).to(tl.uint16) << 7)
        x = bits.to(tl.float16, bitcast=True) * 256.0
    return x.to(like.dtype)


@triton.jit(do_not_specialize=["first_block", "sequences", "table_row"])
def attend(
    q, k, v, k_scales, v_scales, out, parts, logs,
    table, starts, lengths, full, sinks, alibi,
    scale, softcap, window, first_block, sequences,
    q_row, q_head, k_page, k_head, k_slot, v_page, v_head, v_slot, table_row,
    D: tl.constexpr, HEAD: tl.constexpr, TAIL: tl.constexpr,
    DV: tl.constexpr, VALUE: tl.constexpr, PAGE: tl.constexpr,
    GROUP: tl.constexpr, HEADS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    SEGMENT: tl.constexpr, SPLIT: tl.constexpr, SINGLE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr, ALIBI: tl.constexpr,
    FULL: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (block of rows, block of heads, split): compute its rows of `out`; if SPLIT a part.

    A query has HEAD + TAIL elements, both powers of two, of which D are used; TAIL may be 0.
    Scores are multiplied by log2(e), for exp2. SCALED: elements are multiplied by k_scales and
    v_scales [pages, kv, PAGE].
    """
    BLOCK_Q: tl.constexpr = BLOCK_M // HEADS
    PER_KV: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    local = tl.program_id(0)
    if not SPLIT:
        local = tl.num_programs(0) - 1 - local  # later rows have more keys: start them first
    s, start, first, queries = locate_sequence(
        starts, first_block + local, sequences, BLOCK_Q, SINGLE
    )
    if first >= queries:
        return
    length = tl.load(lengths + s)
    kv = tl.program_id(1) // PER_KV

    m = tl.arange(0, BLOCK_M)
    row = first + m // HEADS
    member = (tl.program_id(1) % PER_KV) * HEADS + m % HEADS
    head = kv * GROUP + member
    live = (m < BLOCK_Q * HEADS) & (row < queries) & (member < GROUP)
    position = length - queries + row
    source = q + (start + row).to(tl.int64)[:, None] * q_row + head[:, None] * q_head
    dims = tl.arange(0, HEAD)
    used = live[:, None]
    if D < HEAD:
        used &= (dims < D)[None, :]
    query = tl.load(source + dims[None, :], used, other=0.0)
    if TAIL > 0:
        rest = HEAD + tl.arange(0, TAIL)
        tail = tl.load(source + rest[None, :], live[:, None] & (rest < D)[None, :], other=0.0)
    if ALIBI:
        slope = tl.load(alibi + head, live, other=0.0).to(tl.float32) * LOG2E

    low = 0
    if WINDOW:
        low = tl.maximum(length - queries + first - window + 1, 0)
    high = tl.minimum(length, length - queries + first + BLOCK_Q)
    last = position
    if FULL:
        whole = tl.load(full + s) > 0
        high = tl.where(whole, length, high)
        last = tl.where(whole, length, position)
    begin = low // BLOCK_N * BLOCK_N
    end = high
    if SEGMENT > 0:
        begin = tl.maximum(begin, tl.program_id(2) * SEGMENT)
        end = tl.minimum(high, tl.program_id(2) * SEGMENT + SEGMENT)
    elif SPLIT:
        share = tl.cdiv(tl.cdiv(high - begin, BLOCK_N), tl.num_programs(2)) * BLOCK_N
        begin += tl.program_id(2) * share
        end = tl.minimum(high, begin + share)

    best = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    if SINKS and not SPLIT:
        best = tl.load(sinks + head, live, other=0.0).to(tl.float32) * LOG2E
        total += 1.0
    sums = tl.zeros((BLOCK_M, VALUE), tl.float32)
    value_dims = tl.arange(0, VALUE)
    k_base = k + kv.to(tl.int64) * k_head
    v_base = v + kv.to(tl.int64) * v_head
    pages = table + s.to(tl.int64) * table_row
    for at in tl.range(begin, end, BLOCK_N):
        key_at = at + tl.arange(0, BLOCK_N)
        known = (key_at >= low) & (key_at < end)
        page = tl.load(pages + key_at // PAGE, known, other=0).to(tl.int64)
        place = key_at % PAGE
        k_row = k_base + page * k_page + place * k_slot
        inside = known[None, :]
        if D < HEAD:
            inside &= (dims < D)[:, None]
        key = tl.load(k_row[None, :] + dims[:, None], inside, other=0.0)
        scores = tl.dot(query, widen(key, query), input_precision=PRECISION)
        if TAIL > 0:
            inside = known[None, :] & (rest < D)[:, None]
            key = tl.load(k_row[None, :] + rest[:, None], inside, other=0.0)
            scores = tl.dot(tail, widen(key, query), scores, input_precision=PRECISION)
        if SCALED:
            unit = (page * (tl.num_programs(1) // PER_KV) + kv) * PAGE + place
            scores *= (tl.load(k_scales + unit, known, other=0.0) * scale)[None, :]
        else:
            scores *= scale
        if SOFTCAP:  # tanh(z) = 1 - 2 / (1 + e^2z); `scale` contains the 2 / softcap
            scores = softcap * (1.0 - 2.0 / (1.0 + tl.exp2(scores)))
        if ALIBI:
            scores += slope[:, None] * (key_at[None, :] - position[:, None])
        visible = known[None, :] & (key_at[None, :] <= last[:, None])
        if WINDOW:
            visible &= key_at[None, :] > position[:, None] - window
        scores = tl.where(visible, scores, float("-inf"))

        raised = tl.maximum(best, tl.max(scores, 1))
        level = tl.where(raised == float("-inf"), 0.0, raised)  # -inf - -inf would be NaN
        weights = tl.exp2(scores - level[:, None])
        decay = tl.exp2(best - level)
        total = total * decay + tl.sum(weights, 1)
        best = raised

        v_row = v_base + page * v_page + place * v_slot
        inside = known[:, None] & (value_dims < DV)[None, :]
        value = tl.load(v_row[:, None] + value_dims[None, :], inside, other=0.0)
        sums = sums * decay[:, None]
        if SCALED:
            weights *= (tl.load(v_scales + unit, known, other=0.0) * RAISE)[None, :]
        weights = weights.to(query.dtype)
        sums = tl.dot(weights, widen(value, query), sums, input_precision=PRECISION)

    seen = total > 0
    total = tl.where(seen, total, 1.0)
    result = sums / (total * RAISE if SCALED else total)[:, None]
    if SPLIT:
        tile = (local * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(2)
        part = (tile + tl.program_id(2)).to(tl.int64) * BLOCK_M + m
        tl.store(logs + part, tl.where(seen, best + tl.log2(total), float("-inf")), live)
        inside = (live & seen)[:, None] & (value_dims < DV)[None, :]
        tl.store(parts + part[:, None] * DV + value_dims[None, :], result, inside)
    else:
        target = ((start + row).to(tl.int64) * (tl.num_programs(1) // PER_KV * GROUP) + head) * DV
        inside = live[:, None] & (value_dims < DV)[None, :]
        tl.store(out + target[:, None] + value_dims[None, :], result, inside)


@triton.jit(do_not_specialize=["first_block", "sequences", "splits"])
def merge(
    out, parts, logs, starts, sinks, first_block, sequences, splits,
    DV: tl.constexpr, VALUE: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr,
    BLOCK_M: tl.constexpr, SINGLE: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Program (block of rows, block of heads, m): merge the parts of a head of a row into `out`."""
    BLOCK_Q: tl.constexpr = BLOCK_M // HEADS
    PER_KV: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    local = tl.program_id(0)
    m = tl.program_id(2)
    _, start, first, queries = locate_sequence(
        starts, first_block + local, sequences, BLOCK_Q, SINGLE
    )
    row = first + m // HEADS
    member = (tl.program_id(1) % PER_KV) * HEADS + m % HEADS
    if (m >= BLOCK_Q * HEADS) | (row >= queries) | (member >= GROUP):
        return
    head = tl.program_id(1) // PER_KV * GROUP + member

    best = float("-inf")
    total = 0.0
    if SINKS:
        best = tl.load(sinks + head).to(tl.float32) * LOG2E
        total = 1.0
    sums = tl.zeros((VALUE,), tl.float32)
    dims = tl.arange(0, VALUE)
    tile = (local * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * splits
    # As many parts at once as fit into registers: each round waits for its loads.
    AT_ONCE: tl.constexpr = 32 if VALUE <= 128 else 8
    for at in tl.range(0, splits, AT_ONCE):
        split = at + tl.arange(0, AT_ONCE)
        part = (tile + split) * BLOCK_M + m
        log = tl.load(logs + part, split < splits, other=float("-inf"))
        raised = tl.maximum(best, tl.max(log, 0))
        level = tl.where(raised == float("-inf"), 0.0, raised)
        weights = tl.exp2(log - level)
        decay = tl.exp2(best - level)
        inside = (log > float("-inf"))[:, None] & (dims < DV)[None, :]
        part = tl.load(parts + part[:, None] * DV + dims[None, :], inside, other=0.0)
        sums = sums * decay + tl.sum(weights[:, None] * part, 0)
        total = total * decay + tl.sum(weights, 0)
        best = raised
    result = sums / tl.where(total > 0, total, 1.0)
    target = (start + row).to(tl.int64) * (tl.num_programs(1) // PER_KV * GROUP) + head
    tl.store(out + target * DV + dims, result, dims < DV)
