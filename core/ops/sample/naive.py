"""Sampling in plain torch, row by row: each truncation applies to the tokens the last one kept.

Top-k, typical and top-p are one rule with different scores, weights and limits: a token is kept if
the total weight of tokens with strictly better scores is below the limit. So tokens of equal score
are kept or dropped together.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ostro.core.ops.sample import Draw

GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MIX = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
LEAST = -106.0
"""Lower bound of scores: the exponential of lower ones is 0 in float32."""
LOG2_E = 1.4426950408889634
CANDIDATES = (1024, 16384)
"""Numbers of tokens to sort first; the whole vocabulary is sorted only if they are not enough."""


class Rule(NamedTuple):
    """The parameters of one row of a `Draw`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical: float


def sample(logits: Tensor, params: Draw) -> Tensor:
    """See the package."""
    top, tokens = logits.max(-1)  # NaN is the largest
    is_finite = top.isfinite()
    if not params.greedy:
        u = uniform(params.seed, params.position)
        rules = zip(*(getattr(params, name).tolist() for name in Rule._fields), strict=True)
        finite = is_finite.tolist()
        for row, rule in enumerate(map(Rule._make, rules)):
            if rule.temperature > 0 and finite[row]:
                ids, weights = survivors(logits[row] - top[row], rule)
                tokens[row] = ids[locate(weights, u[row])]
    return tokens.masked_fill_(~is_finite, -1)


def survivors(logits: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """Return the ids [n] int64 of the tokens kept by truncation, ascending, and their weights [n].

    logits [V] minus their maximum; a weight is the exponential of logit / temperature.
    """
    ids = torch.arange(len(logits), device=logits.device)
    scores = (logits * (1 / rule.temperature)).clamp_(min=LEAST)
    # Not exp(): on CPUs it is ten times slower where the result is 0, as for excluded tokens.
    weights = (scores * LOG2_E).exp2_()
    if rule.min_p > 0:
        ids, scores, weights = select(weights >= rule.min_p, ids, scores, weights)
    if 0 < rule.top_k < len(ids):
        least = scores.topk(rule.top_k).values[-1]
        ids, scores, weights = select(scores >= least, ids, scores, weights)
    if rule.typical < 1:
        # minus the distance of -log p from the entropy; the normalization of p cancels out
        total = weights.sum(dtype=torch.float64)
        key = -(scores - (weights * scores).sum() / total).abs()
        least = threshold(key, weights, rule.typical * float(total))
        ids, scores, weights = select(key >= least, ids, scores, weights)
    if rule.top_p < 1:
        least = threshold(scores, weights, rule.top_p * float(weights.sum(dtype=torch.float64)))
        ids, scores, weights = select(scores >= least, ids, scores, weights)
    return ids, weights


def select(kept: Tensor, *columns: Tensor) -> tuple[Tensor, ...]:
    places = kept.nonzero()[:, 0]
    return tuple(column[places] for column in columns)


def threshold(key: Tensor, weights: Tensor, limit: float) -> Tensor:
    """Return the least key such that all larger keys weigh less than the limit in total.

    key and weights [n]; the largest key if no other one qualifies.
    """
    for size in (*CANDIDATES, len(key)):
        best, order = key.topk(min(size, len(key)))
        own = weights[order].double()
        total = own.cumsum(0)
        if size >= len(key) or total[-1] >= limit:
            break
    passing = int((total - own < limit).sum())
    return best[max(passing - 1, 0)]


def locate(weights: Tensor, u: Tensor) -> Tensor:
    """The first index where the cumulative sum of weights [n] exceeds u * sum, u of any shape."""
    cumulative = weights.cumsum(0, dtype=torch.float64)
    return torch.searchsorted(cumulative, u * cumulative[-1], right=True)


def uniform(seed: Tensor, position: Tensor) -> Tensor:
    """A float32 number within [0, 1) for each seed and position, both int64.

    A counter-based generator: splitmix64's finalizer (Steele et al. 2014) of the seed, then of that
    plus position * GOLDEN; the number is made of the upper 24 bits.
    """
    bits = mix(mix(seed + GOLDEN) + position * GOLDEN)
    return shift(bits, 40).float() * 2.0**-24


def mix(x: Tensor) -> Tensor:
    x = (x ^ shift(x, 30)) * MIX[0]
    x = (x ^ shift(x, 27)) * MIX[1]
    return x ^ shift(x, 31)


def shift(x: Tensor, n: int) -> Tensor:
    """Logical right shift of int64: x >> n of the unsigned numbers with the same bits."""
    return (x >> n) & ((1 << (64 - n)) - 1)
