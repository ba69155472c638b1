"""What is measured, and how it is summed up.

TTFT is the time from sending a request to its first token; ITL the gap between two tokens of one
request, all requests pooled; prefill is prompt tokens over TTFT of a lone request; decode is tokens
after the first over the time they took, summed over the requests that ran together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from math import ceil
from statistics import median, stdev
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass
class Trace:
    """One request: when it was sent, and when each of its tokens came (seconds)."""

    sent: float
    prompt: int
    times: list[float] = field(default_factory=list)
    cached: int = 0

    @property
    def ttft(self) -> float:
        return self.times[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


@dataclass
class Row:
    """One line of the table. Times in milliseconds, rates in tokens per second."""

    test: str
    concurrency: int
    prefill: float
    prefill_spread: float
    decode: float
    decode_spread: float
    total: float
    ttft_p50: float
    ttft_p95: float
    itl_p50: float
    itl_p95: float
    peak_kv_bytes: int | None = None
    prefix_cache: bool | None = None
    cached_tokens: int = 0

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def take(prompts: Sequence[T], count: int) -> list[T]:
    """So many of the prompts, from the first again where there are too few; none of none."""
    return list(islice(cycle(prompts), count))


def title(prompt: int, tokens: int, prompts: Sequence[object]) -> str:
    """The name of a test: of random prompts of a length, or of prompts that were given."""
    return f"given+tg{tokens}" if prompts else f"pp{prompt}+tg{tokens}"


def summed(test: str, runs: Sequence[Sequence[Trace]]) -> Row:
    """One row out of several runs of the same requests: medians over runs, percentiles over all."""
    gaps = [gap for run in runs for trace in run for gap in trace.gaps]
    ttfts = [trace.ttft for run in runs for trace in run]
    prefills = [prefill_rate(run) for run in runs]
    decodes = [decode_rate(run) for run in runs]
    return Row(
        test=test,
        concurrency=len(runs[0]),
        prefill=median(prefills),
        prefill_spread=spread(prefills),
        decode=median(decodes),
        decode_spread=spread(decodes),
        total=median(total_rate(run) for run in runs),
        ttft_p50=1e3 * percentile(ttfts, 50),
        ttft_p95=1e3 * percentile(ttfts, 95),
        itl_p50=1e3 * percentile(gaps, 50),
        itl_p95=1e3 * percentile(gaps, 95),
        cached_tokens=max((trace.cached for run in runs for trace in run), default=0),
    )


def prefill_rate(run: Sequence[Trace]) -> float:
    """Prompt tokens of all requests over the time until the last of them has its first token."""
    start = min(trace.sent for trace in run)
    return sum(t.prompt for t in run) / (max(t.times[0] for t in run) - start)


def decode_rate(run: Sequence[Trace]) -> float:
    """Tokens drawn while all requests were decoding, over that time; a lone request's own rate."""
    start = max(trace.times[0] for trace in run)
    stop = min(trace.times[-1] for trace in run)
    drawn = sum(start < time <= stop for trace in run for time in trace.times)
    return drawn / (stop - start) if stop > start else 0.0


def total_rate(run: Sequence[Trace]) -> float:
    """All tokens drawn over the whole time."""
    start, stop = min(t.sent for t in run), max(t.times[-1] for t in run)
    return sum(len(t.times) for t in run) / (stop - start)


def spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank; 0 for no values."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[max(0, ceil(len(ordered) * share / 100) - 1)]
