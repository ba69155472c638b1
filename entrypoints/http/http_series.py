"""The figures of the HTTP requests of one process; those of several processes can be added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

from ostro.entrypoints.http.request_record import RequestRecord
from ostro.entrypoints.http.series import Histogram, Labels, counter_family, histogram_family

K = TypeVar("K")

STEPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)
"""Bounds in seconds of histograms whose values are about one step of an engine."""
REQUESTS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 150, 600, 3600)
"""Bounds in seconds of histograms whose values are about one request."""
COUNTERS: Mapping[str, tuple[str, str]] = {
    "ostro_http_request_bytes": ("Bytes of request bodies.", "bytes_in"),
    "ostro_http_response_bytes": ("Bytes of response bodies.", "bytes_out"),
    "ostro_http_disconnects": ("Requests whose client left early.", "disconnects"),
}
"""Counters by route: their descriptions, and their fields of `RouteSeries`."""


class RouteSeries(msgspec.Struct):
    """The HTTP requests of one route."""

    seconds: Histogram = msgspec.field(default_factory=lambda: Histogram(REQUESTS))
    bytes_in: int = 0
    bytes_out: int = 0
    disconnects: int = 0

    def add(self, other: RouteSeries) -> None:
        """Add the figures of another process."""
        self.seconds.add(other.seconds)
        for _, name in COUNTERS.values():
            setattr(self, name, getattr(self, name) + getattr(other, name))


class HttpSeries(msgspec.Struct):
    """The HTTP requests of a process, and the lag of its event loop.

    responses: by method, route and status. errors: by route and code. running and body_bytes: the
    requests that have not ended, and the bytes of their bodies.
    """

    routes: dict[str, RouteSeries] = {}
    responses: dict[Labels, int] = {}
    errors: dict[Labels, int] = {}
    running: int = 0
    body_bytes: int = 0
    lag: Histogram = msgspec.field(default_factory=lambda: Histogram(STEPS))

    def end(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        route = record.route
        series = self.routes.setdefault(route, RouteSeries())
        series.seconds.observe(record.total)
        series.bytes_in += record.bytes_in
        series.bytes_out += record.bytes_out
        series.disconnects += record.disconnected
        self.running -= 1
        self.body_bytes -= record.bytes_in
        # Without a response the client has left, or the server cancelled the request.
        increase(self.responses, (record.method, route, str(record.status or "none")))
        if record.error:
            increase(self.errors, (route, record.error))

    def add(self, other: HttpSeries) -> None:
        """Add the figures of another process."""
        for route, series in other.routes.items():
            self.routes.setdefault(route, RouteSeries()).add(series)
        for mine, theirs in ((self.responses, other.responses), (self.errors, other.errors)):
            for labels, count in theirs.items():
                increase(mine, labels, count)
        self.running += other.running
        self.body_bytes += other.body_bytes
        self.lag.add(other.lag)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        labels = ("method", "route", "status")
        name = "ostro_http_requests"
        yield counter_family(name, "HTTP responses.", labels, self.responses.items())
        name, text = "ostro_http_errors", "Error responses by code."
        yield counter_family(name, text, ("route", "code"), self.errors.items())
        seconds: dict[Labels, Histogram] = {(x,): each.seconds for x, each in self.routes.items()}
        name, text = "ostro_http_request_seconds", "Time to the end of a response."
        yield histogram_family(name, text, ("route",), seconds)
        for name, (text, attribute) in COUNTERS.items():
            values = (((route,), getattr(each, attribute)) for route, each in self.routes.items())
            yield counter_family(name, text, ("route",), values)
        text = "HTTP requests that have not ended."
        yield GaugeMetricFamily("ostro_http_requests_running", text, self.running)
        text = "Bytes of the bodies of these requests."
        yield GaugeMetricFamily("ostro_http_body_bytes", text, self.body_bytes)
        name, text = "ostro_event_loop_lag_seconds", "Delay of timers of the event loop."
        yield histogram_family(name, text, (), {(): self.lag})


def increase(counts: dict[K, int], key: K, by: int = 1) -> None:
    counts[key] = counts.get(key, 0) + by
