"""Results of a quality measurement, with 95 % confidence intervals.

The intervals assume that positions are independent.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import exp, sqrt
from typing import Any

from torch import Tensor

Z = 1.959964
"""The 97.5 % quantile of the standard normal distribution."""


@dataclass(frozen=True)
class Estimate:
    """An estimate and its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Memory of a model's linears, embeddings and experts; `bits` is the average per weight."""

    nbytes: int
    bits: float
    formats: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LayerError:
    """Error |W x - W' x| / |W x| of one weight, over sampled inputs x of the reference."""

    name: str
    format: str
    error: float


@dataclass(frozen=True, kw_only=True)
class Quality:
    """The quality of a variant relative to its reference.

    kl: mean KL divergence in nats per token; kl_p99 is its 99th percentile. top1: share of
    positions with the same most likely token. ratio: the perplexity divided by the reference's,
    from the paired differences of losses, which makes its interval narrow. layers: largest error
    first. interrupted: Ctrl-C ended the measurement: it covers fewer positions, or no layers.
    """

    name: str
    positions: int
    interrupted: bool
    weights: Weights
    kl: Estimate
    kl_p99: float
    top1: Estimate
    perplexity: Estimate
    ratio: Estimate
    layers: tuple[LayerError, ...] = ()


@dataclass(frozen=True, kw_only=True)
class QualityReport:
    """The result of a measurement.

    positions: positions with a next token. limit: limit on the tokens of the text, if any.
    interrupted: Ctrl-C ended the measurement; `variants` are those measured before it.
    """

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
    limit: int | None = None
    interrupted: bool = False

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def mean(values: Tensor) -> Estimate:
    """Return the mean of values [N] float64. The interval of a single value has width 0."""
    value = float(values.mean())
    error = Z * float(values.std()) / sqrt(len(values)) if len(values) > 1 else 0.0
    return Estimate(value, value - error, value + error)


def share(hits: Tensor) -> Estimate:
    """Return the share of true in [N] booleans, with Wilson's score interval, within 0..1."""
    n, p = len(hits), float(hits.double().mean())
    scale = 1 + Z**2 / n
    center = (p + Z**2 / (2 * n)) / scale
    error = Z * sqrt(p * (1 - p) / n + (Z / (2 * n)) ** 2) / scale
    return Estimate(p, max(0.0, center - error), min(1.0, center + error))


def perplexity(losses: Tensor) -> Estimate:
    """Return exp of the mean of losses [N] in nats; exp also maps the ends of the interval."""
    found = mean(losses)
    return Estimate(exp(found.value), exp(found.low), exp(found.high))
