"""`GET /metrics` for Prometheus: the engine's counters, and those of each adapter's generation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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

LABELS = ("model", "adapter", "generation")


class Families(Collector):
    """Metrics that were collected already."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self.found = list(found)

    def collect(self) -> Iterable[Metric]:
        return self.found


async def metrics(request: Request) -> Response:
    """GET /metrics; before the engine is ready `ostro_ready` alone, as 0."""
    service: Service = request.app.state.service
    found: list[Metric] = [
        GaugeMetricFamily("ostro_ready", "Whether a request would be answered.", int(service.ready))
    ]
    if service.ready:
        found += of_engine(await service.engine.stats())
        await service.learn()
        found += of_adapters(service.adapters)
    registry = CollectorRegistry()
    registry.register(Families(found))
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(registry), media_type=content_type)


def of_engine(stats: Stats) -> Iterator[Metric]:
    """What the engine counts, of all models together."""
    yield GaugeMetricFamily("ostro_requests_running", "Sequences in the batch.", stats.running)
    yield GaugeMetricFamily("ostro_requests_waiting", "Sequences in line.", stats.waiting)
    yield CounterMetricFamily("ostro_steps", "Steps of the token loop.", stats.steps)
    yield CounterMetricFamily("ostro_prompt_tokens", "Tokens of prompts.", stats.prompt_tokens)
    yield CounterMetricFamily(
        "ostro_cached_tokens", "Tokens of prompts found in the prefix cache.", stats.cached_tokens
    )
    yield CounterMetricFamily("ostro_generated_tokens", "Tokens drawn.", stats.generated_tokens)
    yield CounterMetricFamily(
        "ostro_preemptions", "Sequences that gave up their blocks to others.", stats.preemptions
    )
    used = stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0
    yield GaugeMetricFamily("ostro_kv_usage_ratio", "Share of K/V blocks in use.", used)
    yield GaugeMetricFamily("ostro_kv_bytes", "Bytes of K/V blocks in use.", stats.cache_bytes)


def of_adapters(adapters: Adapters) -> Iterator[Metric]:
    """What is known of every adapter, by its name and the generation that this goes to."""
    asked = CounterMetricFamily("ostro_adapter_requests", "Requests for it.", labels=LABELS)
    running = GaugeMetricFamily("ostro_adapter_running", "Of these, under way.", labels=LABELS)
    resident = GaugeMetricFamily("ostro_adapter_resident", "1 on the device.", labels=LABELS)
    size = GaugeMetricFamily("ostro_adapter_bytes", "Of its weights, once read.", labels=LABELS)
    for model, known in adapters.known.items():
        for facts in known.values():
            labels = (model, facts.name, facts.generation)
            asked.add_metric(labels, facts.requests)
            running.add_metric(labels, facts.running)
            resident.add_metric(labels, int(facts.resident))
            size.add_metric(labels, facts.nbytes)
    yield from (asked, running, resident, size)


ROUTES = [Route("/metrics", metrics, methods=["GET"])]
