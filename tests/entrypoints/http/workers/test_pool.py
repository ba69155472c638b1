"""Options that several workers do not support, and the figures of several processes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ostro.core.errors import UsageError
from ostro.core.settings import Settings
from ostro.entrypoints.http.asgi import Application
from ostro.entrypoints.http.http_series import HttpSeries
from ostro.entrypoints.http.options import Options
from ostro.entrypoints.http.request_record import RequestRecord
from ostro.entrypoints.http.server import serve
from ostro.entrypoints.http.workers.pool import WorkerPool, check_workers, options_of
from ostro.entrypoints.serve_config import ModelOptions

MODEL = ModelOptions(settings=Settings(reference="starter"))


@pytest.mark.parametrize(
    ("options", "model", "message"),
    [
        (dict(workers=0), MODEL, "--workers 0: expected at least 1"),
        (dict(workers=2), MODEL, "--workers 2 requires a store for several processes"),
        (dict(workers=2, store="none", log_requests="f"), MODEL, "--log-requests requires one"),
        (dict(workers=2, store="none"), replace(MODEL, load="on demand"), "'starter' is loaded on"),
    ],
)
def test_unsupported_options_are_refused(
    options: dict[str, Any], model: ModelOptions, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        serve([model], **options)


def test_supported_options() -> None:
    check_workers(Options(), [replace(MODEL, load="on demand")])
    check_workers(Options(workers=3, store="none"), [MODEL])
    with pytest.raises(UsageError, match="ostro serve --workers"):
        Application([MODEL.settings], workers=2, store="none")


def test_a_worker_gets_all_options_but_the_keys(tmp_path: Any) -> None:
    given = Options(api_keys=["secret"], admin_key="secret", keys=tmp_path, uds=tmp_path, workers=2)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(options_of(given)))
    assert "secret" not in str(sent)
    expected = replace(Options(), uds=str(tmp_path), workers=2)
    for name, value in sent.items():
        assert value == getattr(expected, name) or [*getattr(expected, name)] == value


def series(*statuses: int) -> HttpSeries:
    """The figures of a process with one ended request of each status, and one that runs."""
    found = HttpSeries(running=1 + len(statuses))
    for status in statuses:
        scope = {"type": "http", "method": "GET", "headers": []}
        record = RequestRecord(scope, "id", "", status=status, total=0.5, bytes_out=10)
        record.error = "not_found" if status == 404 else ""
        found.end(record)
    found.lag.observe(0.002)
    return found


def test_the_figures_of_processes_add_up() -> None:
    total = HttpSeries()
    for each in (series(200, 404), series(404, 404)):
        total.add(msgspec.msgpack.decode(msgspec.msgpack.encode(each), type=HttpSeries))
    assert total.responses == {("GET", "other", "200"): 1, ("GET", "other", "404"): 3}
    assert total.errors == {("other", "not_found"): 3} and total.running == 2
    route = total.routes["other"]
    assert (sum(route.seconds.counts), route.seconds.total, route.bytes_out) == (4, 2.0, 40)
    assert sum(total.lag.counts) == 2
    assert {metric.name for metric in total.collect()} == {m.name for m in HttpSeries().collect()}


def test_a_load_has_a_number_of_its_own() -> None:
    pool: Any = SimpleNamespace(loads={})
    first, second, other = (SimpleNamespace(name=name) for name in "aab")
    models: list[Any] = [first, first, other, second, second, other]
    numbers = [WorkerPool.load_of(pool, model) for model in models]
    assert numbers == [1, 1, 1, 2, 2, 1]
