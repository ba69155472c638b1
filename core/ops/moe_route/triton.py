"""Routing in Triton: `route` has a few rows per program, `sort` one expert per program.

The best expert of a tile is one maximum over integers: the key in the high bits, the complement of
the expert's index in the low bits. Their order is that of the selection, including ties and NaN.
There are no atomics: the program that sorts an expert's copies counts those of lower experts.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ostro.core.ops.moe_route import TINY as SMALL
from ostro.core.ops.moe_route import RoutingRule, room
from ostro.core.ops.rows import check_contiguous, dense_rows

TILE = 1024  # logits per program
ROWS = 4  # rows per program at most, one for each of its warps
COPIES = 256, 2048  # copies counted at a time: few, and many
TINY = tl.constexpr(SMALL)
NONE = tl.constexpr(-(1 << 63))  # below every rank
LAST = tl.constexpr(0xFFFF)  # no expert has a higher index, so index ^ LAST is LAST - index


def route(logits: Tensor, rule: RoutingRule, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """See the package."""
    experts, weights = room(logits, rule)
    if not experts.numel():
        return experts, weights
    check_contiguous("route", bias=bias)
    logits = dense_rows(logits)
    rows, count = logits.shape
    groups = rule.groups if rule.best_groups < rule.groups else 1
    size = count // groups
    tile = triton.next_power_of_2(groups) * triton.next_power_of_2(size)
    at_once = max(1, min(ROWS, TILE // tile))
    route_kernel[(triton.cdiv(rows, at_once),)](
        logits,
        logits if bias is None else bias,
        experts,
        weights,
        rows,
        logits.stride(0),
        rule.factor,
        TOP=rule.top,
        GROUPS=groups,
        SIZE=size,
        KEPT=min(groups, rule.best_groups),
        BIAS=bias is not None,
        SIGMOID=rule.sigmoid,
        RENORMALISE=rule.renormalise,
        ROWS=at_once,
        G=triton.next_power_of_2(groups),
        S=triton.next_power_of_2(size),
        K=triton.next_power_of_2(rule.top),
        num_warps=max(ROWS, tile // 512),
    )
    return experts, weights


def sort(experts: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """See the package."""
    experts = experts.contiguous()
    places = experts.new_empty(experts.shape)
    copies = experts.numel()
    expert_of_copy, row_of_copy = experts.new_empty(copies), experts.new_empty(copies)
    if copies:
        sort_kernel[(count,)](
            experts,
            expert_of_copy,
            row_of_copy,
            places,
            copies,
            experts.shape[1],
            BLOCK=COPIES[copies > COPIES[0]],
            num_warps=8,
        )
    return expert_of_copy, row_of_copy, places


@triton.jit(do_not_specialize=["rows"])
def route_kernel(
    logits,
    bias,
    experts,
    weights,
    rows,
    stride,
    factor,
    TOP: tl.constexpr,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    KEPT: tl.constexpr,
    BIAS: tl.constexpr,
    SIGMOID: tl.constexpr,
    RENORMALISE: tl.constexpr,
    ROWS: tl.constexpr,
    G: tl.constexpr,
    S: tl.constexpr,
    K: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    group, member = tl.arange(0, G), tl.arange(0, S)
    expert = (group[:, None] * SIZE + member[None, :])[None]
    real = ((group < GROUPS)[:, None] & (member < SIZE)[None, :])[None]
    live = row < rows
    logits += row * stride
    mask = live[:, None, None] & real
    x = tl.load(logits[:, None, None] + expert, mask=mask, other=float("-inf")).to(tl.float32)
    most = tl.max(tl.max(x, 2), 1)
    total = tl.sum(tl.sum(tl.exp(x - most[:, None, None]), 2), 1)
    key = x
    if BIAS:
        key = tl.sigmoid(x) if SIGMOID else tl.exp(x - most[:, None, None]) / total[:, None, None]
        key += tl.load(bias + expert, mask=real, other=0.0).to(tl.float32)
    place = tl.where(real, rank(key, expert), NONE)
    if KEPT < GROUPS:
        kept = best_groups(place, group, GROUPS, KEPT, BIAS and SIZE > 1)
        outside = rank(tl.full(x.shape, float("-inf"), tl.float32), expert)
        place = tl.where(kept[:, :, None] | ~real, place, outside)
    column = tl.arange(0, K)
    chosen = tl.zeros((ROWS, K), tl.int32)
    for j in range(TOP):
        best = tl.max(tl.max(place, 2), 1)
        chosen = tl.where(column[None, :] == j, index(best)[:, None], chosen)
        place = tl.where(place == best[:, None, None], NONE, place)
    mask = live[:, None] & (column < TOP)[None, :]
    x = tl.load(logits[:, None] + chosen, mask=mask, other=float("-inf")).to(tl.float32)
    weight = weigh(x, most, total, SIGMOID, RENORMALISE) * factor
    to = row[:, None] * TOP + column[None, :]
    tl.store(experts + to, chosen.to(tl.int64), mask=mask)
    tl.store(weights + to, weight, mask=mask)


@triton.jit
def weigh(x, most, total, SIGMOID: tl.constexpr, RENORMALISE: tl.constexpr):
    """The weights of selected logits [ROWS, K]; `most` (maximum) and `total` are of whole rows."""
    if SIGMOID:
        weight = tl.sigmoid(x)
        if RENORMALISE:
            weight /= tl.sum(weight, 1)[:, None] + TINY
    elif RENORMALISE:
        weight = tl.exp(x - tl.max(x, 1)[:, None])
        weight /= tl.sum(weight, 1)[:, None]
    else:
        weight = tl.exp(x - most[:, None]) / total[:, None]
    return weight


@triton.jit
def best_groups(place, group, GROUPS: tl.constexpr, KEPT: tl.constexpr, TWO: tl.constexpr):
    """The mask [ROWS, G] bool of the KEPT best groups of ranks [ROWS, G, S]."""
    first = tl.max(place, 2)
    sum = key_of(first)
    if TWO:
        sum += key_of(tl.max(tl.where(place == first[:, :, None], NONE, place), 2))
    left = tl.where((group < GROUPS)[None, :], rank(sum, group[None, :]), NONE)
    kept = left != left
    for _ in range(KEPT):
        hit = left == tl.max(left, 1)[:, None]
        kept |= hit
        left = tl.where(hit, NONE, left)
    return kept


@triton.jit
def rank(key, index):
    """int64 ranks: larger for larger float32 keys (NaN the largest), then for lower indices."""
    bits = tl.where(key == 0.0, 0.0, key).to(tl.int32, bitcast=True)  # -0.0 equals 0.0
    bits = tl.where(key == key, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)
    return (bits.to(tl.int64) << 32) | (index ^ LAST).to(tl.int64)


@triton.jit
def key_of(rank):
    bits = (rank >> 32).to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def index(rank):
    return (rank & LAST).to(tl.int32) ^ LAST


@triton.jit(do_not_specialize=["copies"])
def sort_kernel(experts, expert_of_copy, row_of_copy, places, copies, top, BLOCK: tl.constexpr):
    """Sort the copies of one expert: count the copies of lower experts, then place its own."""
    mine = tl.program_id(0).to(tl.int64)
    start = tl.zeros((), tl.int64)
    for at in range(0, copies, BLOCK):
        copy = at + tl.arange(0, BLOCK)
        expert = tl.load(experts + copy, mask=copy < copies, other=1 << 30)
        start += tl.sum((expert < mine).to(tl.int32))
    for at in range(0, copies, BLOCK):
        copy = (at + tl.arange(0, BLOCK)).to(tl.int64)
        hit = tl.load(experts + copy, mask=copy < copies, other=1 << 30) == mine
        count = tl.cumsum(hit.to(tl.int32), 0)
        to = start + count - 1
        tl.store(expert_of_copy + to, mine, mask=hit)
        tl.store(row_of_copy + to, copy // top, mask=hit)
        tl.store(places + copy, to, mask=hit)
        start += tl.sum(hit.to(tl.int32))
