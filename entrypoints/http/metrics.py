"""`GET /load`, and `GET /metrics` for Prometheus: requests, engine, adapters and API keys.

`/metrics` answers at once: the figures of requests are counted in this process, those of the engine
are of its last heartbeat.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec
from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from ostro.core.errors import OstroError
from ostro.core.ipc.process import ProcessEngine
from ostro.core.messages.outputs import Stats
from ostro.core.routes import Route
from ostro.core.store import StoreUsage
from ostro.entrypoints.http.errors import respond
from ostro.entrypoints.http.measurement import RequestMetrics
from ostro.entrypoints.operations.access.admission import Admission
from ostro.entrypoints.operations.access.quotas import Quotas
from ostro.entrypoints.operations.documents.state import State
from ostro.entrypoints.operations.models.adapters import Adapters
from ostro.entrypoints.operations.models.service import Service

SECONDS = 0.2
"""Time limit for the list of adapters, which the engine sends between two steps."""
LABELS = ("model", "adapter", "generation")


def cache_usage(stats: Stats) -> float:
    """The fraction of the KV cache of a model in use."""
    return stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0


GAUGES: Mapping[str, tuple[str, Callable[[Stats], float]]] = {
    "vllm:num_requests_running": ("Running sequences.", lambda stats: stats.running),
    "vllm:num_requests_waiting": ("Waiting sequences.", lambda stats: stats.waiting),
    "vllm:kv_cache_usage_perc": ("Fraction of KV cache blocks in use.", cache_usage),
    "ostro_kv_bytes": ("Bytes of KV cache blocks in use.", lambda stats: stats.cache_bytes),
}
"""Gauges of the counters of a model: their descriptions and values."""


class EngineMetrics(Collector):
    """The last known state of the engine and of its adapters."""

    def __init__(self, service: Service, requests: RequestMetrics, state: State) -> None:
        self.service, self.requests, self.state = service, requests, state
        self.measure_workers: Callable[[], Awaitable[None]] | None = None
        self.refreshing: asyncio.Task[None] | None = None
        self.stored: Sequence[StoreUsage] = ()
        requests.registry.register(self)
        if isinstance(service.engine, ProcessEngine):
            pid = lambda: service.engine.pid or "none"  # noqa: E731
            ProcessCollector(namespace="ostro_engine", pid=pid, registry=requests.registry)

    async def refresh_http(self) -> None:
        """Ask the workers, if there are any, for the figures of their HTTP requests."""
        if self.measure_workers is not None:
            await self.measure_workers()

    async def refresh(self) -> None:
        """Ask for the adapters and the documents; wait for them no longer than `SECONDS`."""
        await self.refresh_http()
        if self.refreshing is None or self.refreshing.done():
            self.refreshing = asyncio.ensure_future(self._refresh())
        await asyncio.wait({self.refreshing}, timeout=SECONDS)

    async def _refresh(self) -> None:
        with suppress(OstroError):  # the engine has ended
            if self.service.ready:
                await self.service.refresh_adapters()
        with suppress(OstroError):  # the store does not work
            if self.state.enabled:
                self.stored = await self.state.usage()

    def collect(self) -> Iterable[Metric]:
        engine = self.service.engine
        yield GaugeMetricFamily(
            "ostro_ready", "1 if the engine accepts requests.", int(self.service.ready)
        )
        yield GaugeMetricFamily(
            "ostro_engine_silence_seconds",
            "Time for which the engine has not answered a heartbeat.",
            engine.silence,
        )
        yield from of_admission(engine.admission)
        yield from of_documents(self.stored)
        if engine.info is not None and engine.fault is None:
            yield from of_engine(self.requests.stats)
            yield from of_adapters(self.service.adapters)
            yield self.lora_requests()

    def lora_requests(self) -> Metric:
        """Return vLLM's gauge of the adapters in use; its value is the time since 1970.

        Gateways read the newest series. A request waits until its first output.
        """
        running, waiting = set[str](), set[str]()
        limits = (each.settings.max_adapters for each in self.service.served.values())
        known = {name for each in self.service.adapters.known.values() for name in each}
        for request in self.requests.under_way.values():
            (running if request.counted else waiting).update(known.intersection(request.adapters))
        names = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
        family = GaugeMetricFamily("vllm:lora_requests_info", "Adapters in use.", labels=names)
        found = (",".join(sorted(each)) for each in (running, waiting - running))
        family.add_metric((str(max(limits, default=0)), *found), time.time())
        return family


class Load(msgspec.Struct, kw_only=True):
    """What the server does now. `server_load` are the HTTP requests under way, as in vLLM.

    `running` and `waiting` are sequences of all models, of the engine's last heartbeat.
    `kv_cache_usage` is the largest fraction of a model's KV cache in use. `queued` are the admitted
    sequences that have not ended, `queue_limit` their limit.
    """

    server_load: int
    running: int
    waiting: int
    kv_cache_usage: float
    queued: int
    queue_limit: int | None


class CallerMetrics(Collector):
    """The requests of every API key; the key "" is that of requests without one."""

    def __init__(self, quotas: Quotas) -> None:
        self.quotas = quotas

    def collect(self) -> Iterable[Metric]:
        families: tuple[CounterMetricFamily | GaugeMetricFamily, ...] = (
            CounterMetricFamily("ostro_key_requests", "Accepted HTTP requests.", labels=("key",)),
            CounterMetricFamily(
                "ostro_key_refused", "Requests refused by a limit of the key.", labels=("key",)
            ),
            GaugeMetricFamily("ostro_key_running", "Running HTTP requests.", labels=("key",)),
        )
        for name, quota in self.quotas.known.items():
            usage = quota.usage
            for family, value in zip(
                families, (usage.requests, usage.refused, usage.running), strict=True
            ):
                family.add_metric((name,), value)
        return families


async def metrics(request: Request) -> Response:
    """Return metrics for Prometheus: `ostro_ready`, and all others once the engine is ready."""
    engine: EngineMetrics = request.app.state.metrics
    await engine.refresh()
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(engine.requests.registry), media_type=content_type)


async def load(request: Request) -> Response:
    """Return the load of the server."""
    metrics: EngineMetrics = request.app.state.metrics
    await metrics.refresh_http()
    stats, admission = metrics.requests.stats.values(), metrics.service.engine.admission
    own = admission if isinstance(admission, Admission) else None
    content = Load(
        server_load=metrics.requests.all_http().running - 1,  # without this one
        running=sum(each.running for each in stats),
        waiting=sum(each.waiting for each in stats),
        kv_cache_usage=max(map(cache_usage, stats), default=0.0),
        queued=0 if own is None else own.rows,
        queue_limit=None if own is None else own.max_rows,
    )
    return respond(200, content)


def of_engine(models: dict[str, Stats]) -> Iterator[Metric]:
    """Gauges of every model."""
    for name, (text, value) in GAUGES.items():
        family = GaugeMetricFamily(name, text, labels=("model_name",))
        for model, stats in models.items():
            family.add_metric((model,), value(stats))
        yield family


def of_admission(admission: object) -> Iterator[Metric]:
    """Metrics of the limits on requests that run and wait."""
    if not isinstance(admission, Admission):
        return
    yield GaugeMetricFamily(
        "ostro_queue_sequences", "Admitted sequences that have not ended.", admission.rows
    )
    yield GaugeMetricFamily("ostro_queue_tokens", "Tokens of their prompts.", admission.tokens)
    refused = CounterMetricFamily(
        "ostro_queue_refused", "Requests refused by a limit of the queue.", labels=("reason",)
    )
    for reason, count in admission.refused.items():
        refused.add_metric((reason,), count)
    yield refused


def of_documents(stored: Sequence[StoreUsage]) -> Iterator[Metric]:
    """Gauges of the stored documents by kind."""
    documents, nbytes = Counter[str](), Counter[str]()
    for usage in stored:
        documents[usage.kind] += usage.documents
        nbytes[usage.kind] += usage.nbytes
    for name, text, values in (
        ("ostro_store_documents", "Stored documents.", documents),
        ("ostro_store_bytes", "Bytes of stored documents.", nbytes),
    ):
        family = GaugeMetricFamily(name, text, labels=("kind",))
        for kind, value in values.items():
            family.add_metric((kind,), value)
        yield family


def of_adapters(adapters: Adapters) -> Iterator[Metric]:
    """Metrics of every adapter, labelled by its name and current generation."""
    requests = CounterMetricFamily(
        "ostro_adapter_requests", "Requests with the adapter.", labels=LABELS
    )
    running = GaugeMetricFamily(
        "ostro_adapter_running", "Running requests with the adapter.", labels=LABELS
    )
    resident = GaugeMetricFamily(
        "ostro_adapter_resident", "1 if the adapter is on the device.", labels=LABELS
    )
    size = GaugeMetricFamily(
        "ostro_adapter_bytes", "Bytes of its weights, 0 until loaded.", labels=LABELS
    )
    for model, known in adapters.known.items():
        for info in known.values():
            labels = (model, info.name, info.generation)
            requests.add_metric(labels, info.requests)
            running.add_metric(labels, info.running)
            resident.add_metric(labels, int(info.resident))
            size.add_metric(labels, info.nbytes)
    yield from (requests, running, resident, size)


ROUTES: tuple[Route, ...] = (
    Route(
        name="GET /metrics",
        endpoint=metrics,
        scope="metrics",
        response=["text/plain"],
        error_statuses=(),
    ),
    Route(name="GET /load", endpoint=load, scope="open", response=Load, error_statuses=()),
)
