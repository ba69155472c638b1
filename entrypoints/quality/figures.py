"""Figures with their uncertainty: 95 % intervals, positions taken as independent."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import exp, sqrt
from typing import Any

from torch import Tensor

Z = 1.959964
"""Standard errors on either side of a mean that 95 % of a normal distribution lie within."""


@dataclass(frozen=True)
class Estimate:
    """A figure, and the interval that its true value is in, 95 times of 100."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What a model's linears, embeddings and experts take in memory: `bits` of each weight."""

    nbytes: int
    bits: float
    formats: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LayerError:
    """|W x - W' x| / |W x| over a few inputs x of the reference's run, for one weight."""

    name: str
    format: str
    error: float


@dataclass(frozen=True, kw_only=True)
class Quality:
    """A variant beside its reference.

    `kl` in nats per token; `kl_p99` is not exceeded at 99 % of the positions; `top1` is the share
    of positions at which both find the same token likeliest; `ratio` is the perplexity over the
    reference's, from differences token by token, so that its interval is the narrow one. `layers`
    come worst first.
    """

    name: str
    weights: Weights
    kl: Estimate
    kl_p99: float
    top1: Estimate
    perplexity: Estimate
    ratio: Estimate
    layers: tuple[LayerError, ...] = ()


@dataclass(frozen=True, kw_only=True)
class QualityReport:
    """All that was measured; `positions` are those whose next token is known."""

    model: str
    reference: str
    text: str
    windows: int
    window: int
    positions: int
    dtype: str
    outcomes: int
    weights: Weights
    perplexity: Estimate
    variants: tuple[Quality, ...]

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def mean(values: Tensor) -> Estimate:
    """The mean of [N] values, float64; the spread of a single one counts as none."""
    value = float(values.mean())
    error = Z * float(values.std()) / sqrt(len(values)) if len(values) > 1 else 0.0
    return Estimate(value, value - error, value + error)


def share(hits: Tensor) -> Estimate:
    """The share of true among [N] booleans, with Wilson's interval, which never leaves 0..1."""
    n, p = len(hits), float(hits.double().mean())
    scale = 1 + Z**2 / n
    middle = (p + Z**2 / (2 * n)) / scale
    error = Z * sqrt(p * (1 - p) / n + (Z / (2 * n)) ** 2) / scale
    return Estimate(p, max(0.0, middle - error), min(1.0, middle + error))


def perplexity(losses: Tensor) -> Estimate:
    """exp of the mean of [N] losses in nats; the interval is made before exp is taken."""
    found = mean(losses)
    return Estimate(exp(found.value), exp(found.low), exp(found.high))
