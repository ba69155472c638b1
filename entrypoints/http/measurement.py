"""Counters and histograms of requests, in the process of the HTTP server.

They grow with the events of requests, whether or not the engine answers, and a restart of the
engine does not reset them. Where vLLM has a metric, the name is vLLM's. No label has a value that a
client chooses: labels are names of models and API keys, templates of routes, and fixed words.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from time import monotonic

from msgspec.structs import replace
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ostro.core.engine.request import (
    DEFAULT,
    JobRequest,
    Output,
    Request,
    Stats,
    TokenOutput,
    TokenRequest,
)
from ostro.core.errors import OstroError
from ostro.core.ipc.client import RequestObserver
from ostro.entrypoints.operations.admission import CLAIM

STEPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)
"""Bounds in seconds of histograms whose values are about one step of an engine."""
REQUESTS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 150, 600, 3600)
"""Bounds in seconds of histograms whose values are about one request."""
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
OTHER = "other"
"""The label of a method or a route that the server does not have."""

SCOPE: ContextVar[Scope | None] = ContextVar("SCOPE", default=None)
"""The ASGI scope of the HTTP request that the running task handles."""


@dataclass(slots=True)
class MeasuredRequest:
    """A request under way: its metrics, the time it began, and its unfinished choices.

    `last` is the time of the last output of each choice with tokens. `finish` and `ended` are the
    finish reason and the time of the last choice that finished.
    """

    metrics: ModelMetrics
    begun: float
    choices: set[int]
    last: dict[int, float] = field(default_factory=dict)
    counted: bool = False
    finish: str = "abort"
    ended: float = 0.0


class ModelMetrics:
    """The metrics of one model, route and key, with their labels set."""

    def __init__(self, all: RequestMetrics, model: str, route: str, key: str) -> None:
        labels = (model, route, key)
        self.labels, self.success = labels, all.success
        self.prompt = all.prompt_tokens.labels(*labels)
        self.generated = all.generated_tokens.labels(*labels)
        self.queries = all.prefix_queries.labels(*labels)
        self.hits = all.prefix_hits.labels(*labels)
        self.first = all.first_token.labels(model, route)
        self.between = all.between_tokens.labels(model, route)
        self.queue = all.queue.labels(model, route)
        self.prefill = all.prefill.labels(model, route)
        self.whole = all.whole.labels(model, route)


class RequestMetrics(RequestObserver):
    """Measures the requests to an engine, and the HTTP requests of its server."""

    def __init__(self, default: str) -> None:
        """default: the name of the default model."""
        # A second series for each metric, which no dashboard reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.default = default
        self.registry = CollectorRegistry()
        self.under_way: dict[str, MeasuredRequest] = {}
        self.stats: dict[str, Stats] = {}
        self.known: dict[tuple[str, ...], ModelMetrics] = {}
        ProcessCollector(registry=self.registry)
        by_key, by_route = ("model_name", "route", "key"), ("model_name", "route")
        self.prompt_tokens = self.counter("vllm:prompt_tokens", "Prompt tokens.", *by_key)
        self.generated_tokens = self.counter("vllm:generation_tokens", "Generated tokens.", *by_key)
        self.prefix_queries = self.counter(
            "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", *by_key
        )
        self.prefix_hits = self.counter(
            "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", *by_key
        )
        self.success = self.counter(
            "vllm:request_success", "Ended requests by finish reason.", *by_key, "finished_reason"
        )
        self.first_token = self.histogram(
            "vllm:time_to_first_token_seconds", "Time to the first token.", REQUESTS, *by_route
        )
        self.between_tokens = self.histogram(
            "vllm:inter_token_latency_seconds", "Time between outputs.", STEPS, *by_route
        )
        self.queue = self.histogram(
            "vllm:request_queue_time_seconds", "Time before the first step.", REQUESTS, *by_route
        )
        self.prefill = self.histogram(
            "vllm:request_prefill_time_seconds",
            "Time from the first step to the first token.",
            REQUESTS,
            *by_route,
        )
        self.whole = self.histogram(
            "vllm:e2e_request_latency_seconds", "Time to the last output.", REQUESTS, *by_route
        )
        self.http = self.counter(
            "ostro_http_requests", "HTTP responses.", "method", "route", "status"
        )
        self.http_seconds = self.histogram(
            "ostro_http_request_seconds", "Time to the end of a response.", REQUESTS, "route"
        )
        self.restarts = self.counter("ostro_engine_restarts", "Restarts of the engine.")
        self.preemptions = self.counter(
            "vllm:num_preemptions", "Preempted sequences.", "model_name"
        )
        self.steps = self.counter("ostro_steps", "Engine steps.", "model_name")

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def histogram(self, name: str, text: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=bounds, registry=self.registry)

    def of(self, *labels: str) -> ModelMetrics:
        """The metrics with the labels model, route and key."""
        if labels not in self.known:
            self.known[labels] = ModelMetrics(self, *labels)
        return self.known[labels]

    def begin(self, request: Request) -> None:
        """Count the prompt tokens of a pooling request; those of others are in their output."""
        claim, scope = CLAIM.get(), SCOPE.get()
        model = self.default if request.model == DEFAULT else request.model
        metrics = self.of(
            model,
            OTHER if scope is None else route_of(scope),
            "" if claim is None else claim.caller.name,
        )
        choices = request.sampling.n if isinstance(request, TokenRequest) else 1
        if not isinstance(request, TokenRequest | JobRequest):
            metrics.prompt.inc(sum(map(len, request.inputs)))
        self.under_way[request.id] = MeasuredRequest(metrics, monotonic(), set(range(choices)))

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
        metrics = found.metrics
        metrics.success.labels(*metrics.labels, found.finish).inc()
        metrics.whole.observe(found.ended - found.begun)

    def update(self, stats: Stats) -> None:
        """Keep the engine's counters, and add what they have grown."""
        models = stats.models or {self.default: stats}
        for name, now in models.items():
            before = self.stats.get(name, Stats())
            self.steps.labels(name).inc(growth(before.steps, now.steps))
            self.preemptions.labels(name).inc(growth(before.preemptions, now.preemptions))
        # Copies: an engine in this process goes on counting in its own.
        self.stats = {name: replace(now) for name, now in models.items()}


def growth(before: int, now: int) -> int:
    """By how much a counter has grown; it begins at 0 in each engine process."""
    return now - before if now >= before else now


def measure_tokens(found: MeasuredRequest, output: TokenOutput, now: float) -> None:
    """Measure an output with tokens, and the prompt with the first output of a request."""
    metrics = found.metrics
    if output.prompt_tokens and not found.counted:
        found.counted = True
        metrics.prompt.inc(output.prompt_tokens)
        metrics.queries.inc(output.prompt_tokens)
        metrics.hits.inc(output.cached)
        metrics.queue.observe(output.queued)
        metrics.prefill.observe(max(0.0, now - found.begun - output.queued))
    if not output.tokens:
        return
    metrics.generated.inc(len(output.tokens))
    if not found.last:
        metrics.first.observe(now - found.begun)
    elif output.index in found.last:
        metrics.between.observe(now - found.last[output.index])
    found.last[output.index] = now


class MeasureMiddleware:
    """ASGI middleware that counts HTTP responses by route and status."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        status, begun = 0, monotonic()

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        token = SCOPE.set(scope)
        try:
            await self.app(scope, receive, noting)
        finally:
            SCOPE.reset(token)
            route = route_of(scope)
            method = scope["method"] if scope["method"] in METHODS else OTHER
            # Without a response the client has left, or the server cancelled the request.
            self.metrics.http.labels(method, route, str(status or "none")).inc()
            self.metrics.http_seconds.labels(route).observe(monotonic() - begun)


def route_of(scope: Scope) -> str:
    """Return the path template of the route that the router has chosen."""
    return str(getattr(scope.get("route"), "path", OTHER))
