"""Time series of one event loop.

They are cheaper than those of `prometheus_client`, whose locks cost several microseconds a token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate

import msgspec
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]


class Histogram(msgspec.Struct):
    """Counts of observed values by their upper bounds."""

    bounds: tuple[float, ...]
    counts: list[int] = []
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Add a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: Histogram) -> None:
        """Add the values of a histogram with the same bounds."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def buckets(self) -> list[tuple[str, float]]:
        """The bounds, and the number of values up to each."""
        bounds = map(floatToGoString, (*self.bounds, float("inf")))
        return list(zip(bounds, accumulate(self.counts), strict=True))


def counter_family(
    name: str, text: str, labels: Labels, values: Iterable[tuple[Labels, float]]
) -> CounterMetricFamily:
    """Return the metric family of a counter."""
    family = CounterMetricFamily(name, text, labels=labels)
    for each, value in values:
        family.add_metric(each, value)
    return family


def histogram_family(
    name: str, text: str, labels: Labels, histograms: Mapping[Labels, Histogram]
) -> HistogramMetricFamily:
    """Return the metric family of a histogram."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for each, histogram in histograms.items():
        family.add_metric(each, histogram.buckets(), histogram.total)
    return family
