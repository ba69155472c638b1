"""`GET /metrics` for Prometheus: counters of the engine and of adapters by generation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ostro.core.engine.request import Stats
from ostro.entrypoints.http.adapters import Adapters
from ostro.entrypoints.http.service import Service

SECONDS = 5.0
"""Time limit for the engine's counters, which it sends between two steps."""
LABELS = ("model", "adapter", "generation")


class Families(Collector):
    """A collector of metrics that exist already."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self.found = list(found)

    def collect(self) -> Iterable[Metric]:
        return self.found


async def metrics(request: Request) -> Response:
    """GET /metrics: `ostro_ready`, and all other metrics if the engine is ready and answers."""
    service: Service = request.app.state.service
    found: list[Metric] = [
        GaugeMetricFamily("ostro_ready", "1 if the engine accepts requests.", int(service.ready))
    ]
    if service.ready:
        with suppress(TimeoutError):
            async with asyncio.timeout(SECONDS):
                found += of_engine(await service.engine.stats())
                await service.refresh_adapters()
                found += of_adapters(service.adapters)
    registry = CollectorRegistry()
    registry.register(Families(found))
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(registry), media_type=content_type)


def of_engine(stats: Stats) -> Iterator[Metric]:
    """The engine's counters, summed over all models."""
    yield GaugeMetricFamily("ostro_requests_running", "Running sequences.", stats.running)
    yield GaugeMetricFamily("ostro_requests_waiting", "Waiting sequences.", stats.waiting)
    yield CounterMetricFamily("ostro_steps", "Engine steps.", stats.steps)
    yield CounterMetricFamily("ostro_prompt_tokens", "Prompt tokens.", stats.prompt_tokens)
    yield CounterMetricFamily(
        "ostro_cached_tokens", "Prompt tokens found in the prefix cache.", stats.cached_tokens
    )
    yield CounterMetricFamily("ostro_generated_tokens", "Generated tokens.", stats.generated_tokens)
    yield CounterMetricFamily("ostro_preemptions", "Preempted sequences.", stats.preemptions)
    used = stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0
    yield GaugeMetricFamily("ostro_kv_usage_ratio", "Fraction of KV cache blocks in use.", used)
    yield GaugeMetricFamily("ostro_kv_bytes", "Bytes of KV cache blocks in use.", stats.cache_bytes)


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


ROUTES = [Route("/metrics", metrics, methods=["GET"])]
