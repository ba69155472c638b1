"""OpenTelemetry spans of requests, for a server with `OTEL_EXPORTER_OTLP_ENDPOINT`.

The attributes are the semantic conventions of generative AI and those of vLLM's spans. A span is
made from the record of a request at its end. Nothing is imported without the variable.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from ostro.entrypoints.http.request_record import RequestRecord, record_of

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Variables of which one must be set. The SDK reads them, and its other variables."""
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""Values of `gen_ai.operation.name` by route; other routes have none."""
log = logging.getLogger(__name__)


def start_tracing() -> Tracing | None:
    """Return the tracing that the environment asks for, None without any.

    Logs a warning if the packages of the extra `otel` are missing.
    """
    if not any(map(os.environ.get, ENDPOINTS)):
        return None
    try:
        return Tracing()
    except ImportError as error:
        log.warning("no traces: %s; pip install 'ostro[otel]'", error)
        return None


class Tracing:
    """Exports a span for each request to a model, from a thread of its own."""

    def __init__(self) -> None:
        """Raises ImportError without the packages of the extra `otel`."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        name = os.environ.get("OTEL_SERVICE_NAME", "ostro")
        self.provider = TracerProvider(resource=Resource.create({"service.name": name}))
        self.provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self.tracer = self.provider.get_tracer("ostro")
        self.propagator = TraceContextTextMapPropagator()
        self.kind, self.failed = SpanKind.SERVER, Status(StatusCode.ERROR)

    def __call__(self, record: RequestRecord) -> None:
        """Export the span of a request that has ended, unless its route serves no model."""
        route = record_of(record.scope)
        if route is None or route.scope != "infer":
            return
        operation = OPERATIONS.get(record.route)
        name = f"{operation} {record.model}" if operation and record.model else record.route
        span = self.tracer.start_span(
            name,
            context=self.propagator.extract({"traceparent": record.traceparent}),
            kind=self.kind,
            attributes=attributes_of(record, operation),
            start_time=int(record.started * 1e9),
        )
        if record.status >= 500 or record.finish == "error":
            span.set_status(self.failed)
        span.end(int((record.started + record.total) * 1e9))

    def close(self) -> None:
        """Export the remaining spans."""
        self.provider.shutdown()


def attributes_of(record: RequestRecord, operation: str | None) -> dict[str, Any]:
    """Return the attributes of the span of a request. Times are in seconds."""
    found = {
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "error.type": record.error or None,
        "ostro.request.id": record.id,
        "ostro.key": record.caller or None,
    }
    if record.model:
        found |= {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "ostro",
            "gen_ai.request.model": record.model,
            "gen_ai.response.model": record.model,
            "gen_ai.response.finish_reasons": [record.finish],
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.generated_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
            "gen_ai.latency.time_in_queue": record.queue,
            "gen_ai.latency.time_to_first_token": record.first_token,
            "gen_ai.latency.e2e": record.total,
            "ostro.adapters": list(record.adapters) or None,
        }
    return {name: value for name, value in found.items() if value is not None}
