"""OpenTelemetry spans, which a collector on loopback receives."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from ostro.entrypoints.http.tracing import Tracing, start_tracing

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def collector() -> Iterator[Any]:
    """A collector; `bodies` are the exported requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers["content-length"])
            server.bodies.append((self.path, self.rfile.read(size)))  # type: ignore[attr-defined]
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.bodies = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_request_becomes_a_span(
    start: Any, collector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    tracing = start_tracing()
    assert isinstance(tracing, Tracing)
    ended = list[Any]()
    server = start(observers=[tracing, ended.append])
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    body = {"prompt": "hello", "max_tokens": 3}
    assert server.http.post("/v1/completions", json=body, headers=headers).status_code == 200
    assert server.http.get("/health").status_code == 200
    assert server.complete("a", model="unknown").status_code == 404
    deadline = time.monotonic() + 120
    while len(ended) < 3:  # a span follows the end of its response
        assert time.monotonic() < deadline
        time.sleep(0.01)
    tracing.close()
    spans = []
    for path, data in collector.bodies:
        assert path == "/v1/traces"
        found = trace_service.ExportTraceServiceRequest.FromString(data)
        for resource in found.resource_spans:
            names = {x.key: x.value.string_value for x in resource.resource.attributes}
            assert names["service.name"] == "ostro"
            spans += [span for scope in resource.scope_spans for span in scope.spans]
    span, refused = sorted(spans, key=lambda span: span.start_time_unix_nano)
    assert span.name == "text_completion echo"
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    values = {x.key: x.value for x in span.attributes}
    assert values["gen_ai.request.model"].string_value == "echo"
    assert values["gen_ai.usage.input_tokens"].int_value == 5
    assert values["gen_ai.usage.output_tokens"].int_value == 3
    first = values["gen_ai.latency.time_to_first_token"].double_value
    assert 0 < first <= values["gen_ai.latency.e2e"].double_value
    seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    assert seconds == pytest.approx(values["gen_ai.latency.e2e"].double_value, abs=1e-3)
    assert refused.name == "/v1/completions" and refused.trace_id.hex() != TRACE
    assert "unknown" not in str(refused)


def test_missing_packages_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert start_tracing() is None
    assert "pip install 'ostro[otel]'" in caplog.text


@pytest.mark.process
def test_nothing_is_imported_without_an_endpoint() -> None:
    code = (
        "import sys\n"
        "import ostro.entrypoints.http.server\n"
        "from ostro.entrypoints.http.tracing import start_tracing\n"
        "assert start_tracing() is None\n"
        "heavy = ('opentelemetry.sdk', 'opentelemetry.exporter')\n"  # FastAPI imports the API
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "[]", done.stderr
