"""Metrics of a benchmark.

TTFT is the time from sending a request to its first token. ITL is the time between two tokens of a
request, pooled over all requests. Prefill is prompt tokens divided by the time until every request
has its first token. Decode is tokens per second while all requests decode.
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
    """Times of one request in seconds: when it was sent, and when each token arrived."""

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


@dataclass(frozen=True, kw_only=True)
class KernelTime:
    """The calls of a kernel in one step, and their time in microseconds."""

    name: str
    calls: float
    microseconds: float


@dataclass(frozen=True, kw_only=True)
class StepProfile:
    """The kernels of a step, the slowest first."""

    step: str
    kernels: Sequence[KernelTime]

    @property
    def microseconds(self) -> float:
        return sum(kernel.microseconds for kernel in self.kernels)


@dataclass
class Row:
    """Results of one test. Times are in milliseconds, rates in tokens per second.

    `depth` tokens were in the cache before each prompt; they do not count as prefill.

    Speculative decoding proposed `drafted_tokens` in `proposals`; `accepted_at` counts the accepted
    ones by their place in a proposal. `profiles` are those of a prompt and of a decode step.
    """

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
    proposals: int = 0
    drafted_tokens: int = 0
    accepted_at: list[int] = field(default_factory=list)
    depth: int = 0
    profiles: list[StepProfile] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def take(prompts: Sequence[T], count: int) -> list[T]:
    """Return `count` prompts, repeating them if there are fewer; [] if there are none."""
    return list(islice(cycle(prompts), count))


def title(prompt: int, tokens: int, prompts: Sequence[object], depth: int = 0) -> str:
    """Return the name of a test with random prompts of a length, or with given prompts."""
    name = f"given+tg{tokens}" if prompts else f"pp{prompt}+tg{tokens}"
    return f"{name} @ d{depth}" if depth else name


def summarize(test: str, runs: Sequence[Sequence[Trace]]) -> Row:
    """Return the row of several runs: medians over runs, percentiles over all requests."""
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
    """Return the prompt tokens of all requests per second until the last has its first token."""
    start = min(trace.sent for trace in run)
    return sum(t.prompt for t in run) / (max(t.times[0] for t in run) - start)


def decode_rate(run: Sequence[Trace]) -> float:
    """Return the tokens per second during the time in which all requests decode."""
    start = max(trace.times[0] for trace in run)
    stop = min(trace.times[-1] for trace in run)
    sampled = sum(start < time <= stop for trace in run for time in trace.times)
    return sampled / (stop - start) if stop > start else 0.0


def total_rate(run: Sequence[Trace]) -> float:
    """Return all generated tokens per second of the whole run."""
    start, stop = min(t.sent for t in run), max(t.times[-1] for t in run)
    return sum(len(t.times) for t in run) / (stop - start)


def spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile, 0 without values."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[max(0, ceil(len(ordered) * share / 100) - 1)]
