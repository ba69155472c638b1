"""Counters and histograms of requests, in the process of the HTTP server.

They grow with the events of requests, whether or not the engine answers, and a restart of the
engine does not reset them. Where vLLM has a metric, the name is vLLM's. No label has a value that a
client chooses: labels are names of models and API keys, templates of routes, and fixed words.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic

from msgspec.structs import replace
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ostro.core.errors import OstroError
from ostro.core.ipc.client import RequestObserver
from ostro.core.messages.outputs import Output, Stats, TokenOutput
from ostro.core.messages.requests import DEFAULT_MODEL, JobRequest, Request, TokenRequest
from ostro.entrypoints.http.http_series import REQUESTS, STEPS, HttpSeries
from ostro.entrypoints.http.request_record import OTHER, RECORD, RequestRecord
from ostro.entrypoints.http.series import Histogram, Labels, counter_family, histogram_family
from ostro.entrypoints.operations.access.admission import CLAIM

TOKENS = (1, 8, 32, 128, 512, 2048, 8192, 32768, 131072, 1048576)
"""Bounds of histograms of numbers of tokens."""
LAG_SECONDS = 0.25
"""Seconds between two measurements of the lag of the event loop."""

ENGINE_COUNTERS = {
    "vllm:num_preemptions": ("Preempted sequences.", "preemptions"),
    "vllm:spec_decode_num_drafts": ("Proposals of tokens.", "proposals"),
    "vllm:spec_decode_num_draft_tokens": ("Proposed tokens.", "drafted_tokens"),
    "vllm:spec_decode_num_accepted_tokens": ("Accepted proposed tokens.", "accepted_tokens"),
    "ostro_steps": ("Engine steps.", "steps"),
}
"""Counters of an engine by metric: their text, and the field of `Stats`."""
ACCEPTED_AT = (
    "vllm:spec_decode_num_accepted_tokens_per_pos",
    "Accepted proposed tokens by their place in a proposal.",
)
"""The counter of `Stats.accepted_at`: its name and its text."""


COUNTERS: Mapping[str, tuple[str, str]] = {
    "vllm:prompt_tokens": ("Prompt tokens.", "prompt"),
    "vllm:generation_tokens": ("Generated tokens.", "generated"),
    "vllm:prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", "queries"),
    "vllm:prefix_cache_hits": ("Prompt tokens found in the prefix cache.", "hits"),
}
"""Counters by model, route and key: their descriptions, and their fields of `KeyMetrics`."""
HISTOGRAMS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "vllm:time_to_first_token_seconds": ("Time to the first token.", REQUESTS),
    "vllm:inter_token_latency_seconds": ("Time between outputs.", STEPS),
    "vllm:request_queue_time_seconds": ("Time before the first step.", REQUESTS),
    "vllm:request_prefill_time_seconds": ("Time from the first step to the first token.", REQUESTS),
    "vllm:request_decode_time_seconds": ("Time from the first to the last token.", REQUESTS),
    "vllm:e2e_request_latency_seconds": ("Time to the last output.", REQUESTS),
    "vllm:request_prompt_tokens": ("Prompt tokens of a request.", TOKENS),
    "vllm:request_generation_tokens": ("Generated tokens of a request.", TOKENS),
}
"""Histograms by model and route: their descriptions and bounds."""


@dataclass(slots=True, eq=False)
class MeasuredRequest:
    """A request to an engine: its metrics, its HTTP request, and its unfinished choices.

    `last` is the time of the last output of each choice with tokens, `first` that of the first one.
    `finish` and `ended` are the finish reason and the time of the last choice that finished.
    """

    metrics: KeyMetrics
    record: RequestRecord | None
    begun: float
    choices: set[int]
    adapters: tuple[str, ...] = ()
    last: dict[int, float] = field(default_factory=dict)
    counted: bool = False
    prompt: int = 0
    generated: int = 0
    first: float = 0.0
    finish: str = "abort"
    ended: float = 0.0


class LatencyMetrics:
    """The histograms of one model and route."""

    def __init__(self) -> None:
        self.histograms = {name: Histogram(bounds) for name, (_, bounds) in HISTOGRAMS.items()}
        self.first = self.histograms["vllm:time_to_first_token_seconds"]
        self.between = self.histograms["vllm:inter_token_latency_seconds"]
        self.queue = self.histograms["vllm:request_queue_time_seconds"]
        self.prefill = self.histograms["vllm:request_prefill_time_seconds"]
        self.decode = self.histograms["vllm:request_decode_time_seconds"]
        self.whole = self.histograms["vllm:e2e_request_latency_seconds"]
        self.prompt = self.histograms["vllm:request_prompt_tokens"]
        self.generated = self.histograms["vllm:request_generation_tokens"]


@dataclass(slots=True, eq=False)
class KeyMetrics:
    """The counters of one model, route and key, and the histograms of the model and route."""

    latency: LatencyMetrics
    prompt: int = 0
    generated: int = 0
    queries: int = 0
    hits: int = 0
    ended: Counter[str] = field(default_factory=Counter)


class RequestMetrics(RequestObserver, Collector):
    """Measures the requests to an engine, and the HTTP requests of its server."""

    def __init__(self, default: str, models: Callable[[], Collection[str]] | None = None) -> None:
        """default: the name of the default model. models: returns the names of the models that the
        server has now; the series of others are kept and not reported. None reports all.
        """
        self.default, self.models = default, models
        self.registry = CollectorRegistry()
        self.under_way: dict[str, MeasuredRequest] = {}
        self.stats: dict[str, Stats] = {}
        self.engine_counts = {name: Counter[str]() for name in ENGINE_COUNTERS}
        self.accepted_at = Counter[tuple[str, str]]()
        self.keys: dict[Labels, KeyMetrics] = {}
        self.latencies: dict[Labels, LatencyMetrics] = {}
        self.http = HttpSeries()
        self.workers: Callable[[], Iterable[HttpSeries]] = tuple
        self.restarts, self.measures_lag = 0, False
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def of(self, model: str, route: str, key: str) -> KeyMetrics:
        """The metrics of a model, route and key."""
        found = self.keys.get((model, route, key))
        if found is None:
            latency = self.latencies.setdefault((model, route), LatencyMetrics())
            found = self.keys[model, route, key] = KeyMetrics(latency)
        return found

    def begin(self, request: Request) -> None:
        """Count the prompt tokens of a pooling request; those of others are in their output."""
        claim, record = CLAIM.get(), RECORD.get()
        model = self.default if request.model == DEFAULT_MODEL else request.model
        if record is not None:
            route = record.route
        else:
            route = claim.route if claim is not None and claim.route else OTHER
        metrics = self.of(model, route, "" if claim is None else claim.caller.name)
        choices = request.sampling.n if isinstance(request, TokenRequest) else 1
        found = MeasuredRequest(metrics, record, monotonic(), set(range(choices)))
        if not isinstance(request, TokenRequest | JobRequest):
            found.prompt = sum(map(len, request.inputs))
            metrics.prompt += found.prompt
        found.adapters = tuple(each.name or each.generation for each in request.adapters)
        if record is not None:
            record.model, record.adapters = model, found.adapters
            record.prompt_tokens += found.prompt
        self.under_way[request.id] = found

    def receive(self, output: Output) -> None:
        """Measure an output when it arrives: a slow client does not change the times."""
        found = self.under_way.get(output.id)
        index = output.index if isinstance(output, TokenOutput) else 0
        if found is None or index not in found.choices:
            return
        now = monotonic()
        if isinstance(output, TokenOutput):
            measure_tokens(found, output, now)
        if output.finish is not None:
            found.choices.remove(index)
            found.finish, found.ended = output.finish, now

    def end(self, id: str, error: BaseException | None) -> None:
        """Count a request by its finish reason; one that was closed early counts as aborted."""
        found = self.under_way.pop(id)
        if found.choices:
            found.finish = "error" if isinstance(error, OstroError) else "abort"
            found.ended = monotonic()
        metrics, latency = found.metrics, found.metrics.latency
        metrics.ended[found.finish] += 1
        latency.whole.observe(found.ended - found.begun)
        if found.prompt:
            latency.prompt.observe(found.prompt)
        if found.last:
            latency.generated.observe(found.generated)
            latency.decode.observe(max(found.last.values()) - found.first)
        if (record := found.record) is not None:
            record.finish = found.finish  # type: ignore[assignment]
            record.generated_tokens += found.generated

    def update(self, stats: Stats) -> None:
        """Keep the engine's counters, and add what they have grown."""
        models = stats.models or {self.default: stats}
        for name, now in models.items():
            before = self.stats.get(name, Stats())
            for place, accepted in enumerate(now.accepted_at):
                known = before.accepted_at[place] if before.accepted_at else 0
                self.accepted_at[name, str(place)] += growth(known, accepted)
            for series, (_, name_of_field) in ENGINE_COUNTERS.items():
                count = growth(getattr(before, name_of_field), getattr(now, name_of_field))
                self.engine_counts[series][name] += count
        # Copies: an engine in this process goes on counting in its own.
        self.stats = {name: replace(now) for name, now in models.items()}

    def begin_http(self) -> None:
        """Count an HTTP request that arrives. The first one starts the measurement of the lag."""
        self.http.running += 1
        if not self.measures_lag:
            self.measures_lag = True
            self.measure_lag(None)

    def all_http(self) -> HttpSeries:
        """The figures of the HTTP requests of this process and of its workers."""
        total = HttpSeries()
        for each in (self.http, *self.workers()):
            total.add(each)
        return total

    def measure_lag(self, due: float | None) -> None:
        """Measure how late the event loop calls this method, again and again."""
        loop = asyncio.get_running_loop()
        if due is not None:
            self.http.lag.observe(max(0.0, loop.time() - due))
        due = loop.time() + LAG_SECONDS
        loop.call_at(due, self.measure_lag, due)

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families."""
        shown = None if self.models is None else self.models()
        keys = {x: each for x, each in self.keys.items() if shown is None or x[0] in shown}
        latencies = {
            x: each.histograms
            for x, each in self.latencies.items()
            if shown is None or x[0] in shown
        }
        by_key = ("model_name", "route", "key")
        for name, (text, attribute) in COUNTERS.items():
            values = ((x, getattr(each, attribute)) for x, each in keys.items())
            yield counter_family(name, text, by_key, values)
        ended = (((*x, f), n) for x, each in keys.items() for f, n in each.ended.items())
        text = "Ended requests by finish reason."
        yield counter_family("vllm:request_success", text, (*by_key, "finished_reason"), ended)
        for name, (text, _) in HISTOGRAMS.items():
            found = {x: each[name] for x, each in latencies.items()}
            yield histogram_family(name, text, ("model_name", "route"), found)
        yield from self.all_http().collect()
        yield from self.collect_engine()

    def collect_engine(self) -> Iterator[Metric]:
        """Yield the counters of the engine, of the models that it has now."""
        name, text = "ostro_engine_restarts", "Restarts of the engine."
        yield counter_family(name, text, (), [((), self.restarts)])
        for name, (text, _) in ENGINE_COUNTERS.items():
            values = self.engine_counts[name]
            shown = (((model,), values[model]) for model in self.stats)
            yield counter_family(name, text, ("model_name",), shown)
        name, text = ACCEPTED_AT
        accepted = ((x, count) for x, count in self.accepted_at.items() if x[0] in self.stats)
        yield counter_family(name, text, ("model_name", "position"), accepted)


def growth(before: int, now: int) -> int:
    """By how much a counter has grown; it begins at 0 in each engine process."""
    return now - before if now >= before else now


def measure_tokens(found: MeasuredRequest, output: TokenOutput, now: float) -> None:
    """Measure an output with tokens, and the prompt with the first output of a request."""
    metrics = found.metrics
    if output.prompt_tokens and not found.counted:
        measure_prompt(found, output, now)
    if not output.tokens:
        return
    count, index, last = len(output.tokens), output.index, found.last
    metrics.generated += count
    found.generated += count
    if index in last:
        metrics.latency.between.observe(now - last[index])
    elif not last:
        found.first = now
        metrics.latency.first.observe(now - found.begun)
        if (record := found.record) is not None and record.first_token is None:
            record.first_token = now - record.begun
    last[index] = now


def measure_prompt(found: MeasuredRequest, output: TokenOutput, now: float) -> None:
    """Measure the prompt of a request with its first output."""
    metrics, tokens = found.metrics, output.prompt_tokens
    found.counted, found.prompt = True, tokens
    metrics.prompt += tokens
    metrics.queries += tokens
    metrics.hits += output.cached
    metrics.latency.queue.observe(output.queued)
    metrics.latency.prefill.observe(max(0.0, now - found.begun - output.queued))
    if (record := found.record) is not None:
        record.prompt_tokens += tokens
        record.cached_tokens += output.cached
        record.queue = output.queued if record.queue is None else max(record.queue, output.queued)
