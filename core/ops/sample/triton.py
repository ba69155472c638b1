"""Sampling in Triton: one program per row.

A row without truncation is read three times: for its maximum, for the sum of weights, and for the
token at which the cumulative weight exceeds u times the sum. Rows that truncate are drawn from
their largest logits, the candidates, which torch selects and sorts: min_p, top_k and top_p keep
few tokens of most rows. If the candidates do not contain all tokens that a row keeps, its
thresholds are found by bisection: each pass over the row sums the weights above a pivot and moves
the bounds to values that occur.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.core.ops.rows import dense_rows
from ostro.core.ops.sample import Draw, naive

BLOCK = 4096
CANDIDATES = 1024
GOLDEN = tl.constexpr(naive.GOLDEN)
MIX_1 = tl.constexpr(naive.MIX[0])
MIX_2 = tl.constexpr(naive.MIX[1])
LEAST = tl.constexpr(naive.LEAST)
COUNT = tl.constexpr(0)
TYPICAL = tl.constexpr(1)
MASS = tl.constexpr(2)


def sample(logits: Tensor, params: Draw) -> Tensor:
    """See the package."""
    logits = dense_rows(logits)
    rows, vocabulary = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    count, candidates, ids = 1, logits, tokens
    if not (params.greedy or params.plain):
        count = min(CANDIDATES, vocabulary)
        candidates, ids = logits.topk(count)
    sample_kernel[(rows,)](
        logits,
        logits.stride(0),
        vocabulary,
        candidates,
        ids,
        count,
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        params.typical,
        params.seed,
        params.position,
        tokens,
        GREEDY=params.greedy,
        PLAIN=params.plain,
        BLOCK=min(BLOCK, triton.next_power_of_2(vocabulary)),
        CANDIDATES=triton.next_power_of_2(count),
        num_warps=8,
    )
    return tokens


@triton.jit
def sample_kernel(
    logits,
    stride,
    vocabulary,
    candidates,
    ids,
    count,
    temperature,
    top_k,
    top_p,
    min_p,
    typical,
    seed,
    position,
    tokens,
    GREEDY: tl.constexpr,
    PLAIN: tl.constexpr,
    BLOCK: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    place = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, vocabulary, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(logits + i, mask=i < vocabulary, other=float("-inf"))
        x = tl.where(x == x, x, float("inf"))  # NaN, which maxima would ignore
        place = tl.where(x > best, i, place)
        best = tl.maximum(x, best)
    top = tl.max(best)
    token = tl.min(tl.where(best == top, place, vocabulary - 1))
    if not GREEDY:
        t = tl.load(temperature + row)
        if t > 0:
            scale = 1 / t
            floor = float("-inf")
            mean = 0.0
            reach = float("inf")
            least = 0.0
            u = uniform(tl.load(seed + row), tl.load(position + row))
            drawn = -1
            if not PLAIN:
                least = tl.load(min_p + row)
                k = tl.load(top_k + row)
                share = tl.load(typical + row)
                mass = tl.load(top_p + row)
                if ((least > 0) | (k > 0) | (mass < 1)) & (share == 1):
                    total = 0.0
                    if (k == 0) & (mass < 1):
                        total, _ = moments(
                            logits, vocabulary, top, scale, least, floor, mean, reach, BLOCK
                        )
                    first = row * count
                    drawn = draw_candidate(
                        candidates + first, ids + first, count, vocabulary,
                        top, scale, least, k, mass, total, u, CANDIDATES,
                    )  # fmt: skip
                if drawn < 0:
                    floor, mean, reach = bounds(
                        logits, vocabulary, top, scale, least, k, share, mass, BLOCK
                    )
            if drawn < 0:
                drawn = locate(logits, vocabulary, top, scale, least, floor, mean, reach, u, BLOCK)
            token = drawn
    tl.store(tokens + row, tl.where(tl.abs(top) < float("inf"), token, -1))


@triton.jit
def draw_candidate(
    candidates, ids, count, vocabulary, top, scale, least, k, mass, total, u,
    CANDIDATES: tl.constexpr,
):  # fmt: skip
    """The token of a row from its `count` largest logits, descending, with their ids.

    Returns -1 if these may not contain all tokens that min_p, top_k and top_p keep. `total` is the
    sum of all weights of the row, for top_p without top_k.
    """
    j = tl.arange(0, CANDIDATES)
    inside = j < count
    x = tl.load(candidates + j, mask=inside, other=float("-inf"))
    id = tl.load(ids + j, mask=inside, other=0).to(tl.int32)
    score = tl.maximum((x - top) * scale, LEAST)
    weight = tl.exp(score)
    keep = inside & (weight >= least)
    if k > 0:
        last = tl.sum(tl.where(j == k - 1, score, 0.0))  # 0 if k exceeds the candidates
        keep &= score >= tl.where(k <= count, last, LEAST)
    # The others are not larger than the last candidate: they go if it goes.
    complete = (tl.sum(keep.to(tl.int32)) < count) | (count == vocabulary)
    if (mass < 1) & (complete | (k == 0)):
        weight = tl.where(keep, weight, 0.0)
        limit = tl.maximum(mass * tl.where(complete, tl.sum(weight), total), 1e-37)
        # The first of equal scores decides for all of them.
        better = tl.cumsum(weight, 0) - weight
        floor = tl.min(tl.where(keep & (better < limit), score, float("inf")))
        keep &= score >= floor
        complete |= tl.sum(keep.to(tl.int32)) < count
    token = -1
    if complete:
        # Integers: their sums do not depend on the order of equal scores.
        parts = tl.where(keep, weight * 268435456.0 + 0.5, 0.0).to(tl.int64)
        target = tl.sum(parts) * (u * 16777216.0).to(tl.int64)
        # The first token, by id, at which the cumulative weight exceeds the target.
        low = -1
        high = vocabulary - 1
        while high - low > 1:
            middle = (low + high) // 2
            passed = tl.sum(tl.where(id <= middle, parts, 0))
            exceeds = (passed << 24) > target
            high = tl.where(exceeds, middle, high)
            low = tl.where(exceeds, low, middle)
        token = high
    return token


@triton.jit
def bounds(logits, vocabulary, top, scale, least, k, share, mass, BLOCK: tl.constexpr):
    """The least score, the mean score and the distance from it that top_k, typical (`share`) and
    top_p (`mass`) leave of a row.
    """
    floor = float("-inf")
    mean = 0.0
    reach = float("inf")
    if k > 0:
        floor = threshold(
            logits, vocabulary, top, scale, least, floor, mean, reach, k * 1.0, COUNT, BLOCK
        )
    if share < 1:
        sum, moment = moments(logits, vocabulary, top, scale, least, floor, mean, reach, BLOCK)
        mean = moment / sum
        limit = share * sum
        reach = -threshold(
            logits, vocabulary, top, scale, least, floor, mean, reach, limit, TYPICAL, BLOCK
        )
    if mass < 1:
        sum, _ = moments(logits, vocabulary, top, scale, least, floor, mean, reach, BLOCK)
        limit = mass * sum
        floor = threshold(
            logits, vocabulary, top, scale, least, floor, mean, reach, limit, MASS, BLOCK
        )
    return floor, mean, reach


@triton.jit
def weigh(logits, i, vocabulary, top, scale, least, floor, mean, reach):
    """Return the scores of tokens i, their weights (0 if truncated), and which tokens are kept."""
    x = tl.load(logits + i, mask=i < vocabulary, other=float("-inf"))
    score = tl.maximum((x - top) * scale, LEAST)
    weight = tl.exp(score)
    keep = (weight >= least) & (score >= floor) & (tl.abs(score - mean) <= reach)
    keep &= i < vocabulary
    return score, tl.where(keep, weight, 0.0), keep


@triton.jit
def moments(logits, vocabulary, top, scale, least, floor, mean, reach, BLOCK: tl.constexpr):
    """Return the sums of weight and of weight * score over the kept tokens."""
    sum = tl.zeros((BLOCK,), tl.float32)
    moment = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        i = start + tl.arange(0, BLOCK)
        score, weight, _keep = weigh(logits, i, vocabulary, top, scale, least, floor, mean, reach)
        sum += weight
        moment += weight * score
    return tl.sum(sum), tl.sum(moment)


@triton.jit
def threshold(
    logits,
    vocabulary,
    top,
    scale,
    least,
    floor,
    mean,
    reach,
    limit,
    KEY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """As `naive.threshold`, by bisection.

    Invariant: the weight of keys above `low` reaches the limit, that of keys above `high` does not.
    """
    limit = tl.maximum(limit, 1e-37)  # a limit of 0 still keeps the best token
    low = LEAST
    high = 0.0
    pivot = LEAST
    while low < high:
        above = tl.zeros((BLOCK,), tl.float32)
        over = tl.full((BLOCK,), float("inf"), tl.float32)
        under = tl.full((BLOCK,), float("-inf"), tl.float32)
        for start in range(0, vocabulary, BLOCK):
            i = start + tl.arange(0, BLOCK)
            key, weight, keep = weigh(logits, i, vocabulary, top, scale, least, floor, mean, reach)
            if KEY == TYPICAL:
                key = -tl.abs(key - mean)
            if KEY == COUNT:
                weight = 1.0
            higher = keep & (key > pivot)
            above += tl.where(higher, weight, 0.0)
            over = tl.minimum(over, tl.where(higher, key, float("inf")))
            inside = keep & (key <= pivot) & (key > low)
            under = tl.maximum(under, tl.where(inside, key, float("-inf")))
        next = tl.min(over)
        if tl.sum(above) < limit:
            # If no key is between low and the pivot, the next key above the pivot is the result.
            last = tl.max(under)
            ends = last == float("-inf")
            high = tl.where(ends, next, last)
            low = tl.where(ends, high, low)
        else:
            low = tl.where(next >= high, high, pivot)
        pivot = low + (high - low) * 0.5
        pivot = tl.where(pivot < high, pivot, low)
    return high


@triton.jit
def locate(logits, vocabulary, top, scale, least, floor, mean, reach, u, BLOCK: tl.constexpr):
    """The first token at which the cumulative weight exceeds u times the sum."""
    sum, _moment = moments(logits, vocabulary, top, scale, least, floor, mean, reach, BLOCK)
    target = u * sum
    passed = 0.0
    found = vocabulary
    last = 0
    start = 0
    while (start < vocabulary) & (found == vocabulary):
        i = start + tl.arange(0, BLOCK)
        _score, weight, _keep = weigh(logits, i, vocabulary, top, scale, least, floor, mean, reach)
        hit = (passed + tl.cumsum(weight, 0) > target) & (weight > 0)
        found = tl.min(tl.where(hit, i, vocabulary))
        last = tl.maximum(last, tl.max(tl.where(weight > 0, i, 0)))
        passed += tl.sum(weight)
        start += BLOCK
    # Rounding may keep the cumulative weight below the target: use the last kept token.
    return tl.where(found < vocabulary, found, last)


@triton.jit
def uniform(seed, position):
    """As `naive.uniform`."""
    bits = mix(mix(seed + GOLDEN) + position * GOLDEN)
    return ((bits >> 40) & 0xFFFFFF).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def mix(x):
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * MIX_1
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * MIX_2
    return x ^ ((x >> 31) & 0x1FFFFFFFF)
