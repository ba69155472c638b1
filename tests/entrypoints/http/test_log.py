"""The log of requests and the ids of responses."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from ostro.entrypoints.http.log import ACCESS, JsonFormatter, TextFormatter
from ostro.entrypoints.operations.models.service import Service

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def logged(start: Any) -> Any:
    return start(access_log=True, keys=["sk-secret"])


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Callable[[int], list[logging.LogRecord]]:
    """Wait for a number of log records of requests."""
    caplog.set_level(logging.INFO, ACCESS)

    def wait(count: int) -> list[logging.LogRecord]:
        deadline = time.monotonic() + 120
        while True:
            found = [record for record in caplog.records if record.name == ACCESS]
            if len(found) >= count:
                return found
            assert time.monotonic() < deadline
            time.sleep(0.01)

    return wait


def test_a_line_reports_a_request(logged: Any, records: Any) -> None:
    headers = {
        "authorization": "Bearer sk-secret",
        "x-request-id": "my:id.7",
        "traceparent": PARENT,
    }
    body = {"prompt": "a private text", "max_tokens": 5, "ignore_eos": True}
    answer = logged.http.post("/v1/completions?q=hidden", json=body, headers=headers)
    assert answer.status_code == 200
    (record,) = records(1)
    found = json.loads(JsonFormatter().format(record))
    expected = {
        "level": "info",
        "logger": ACCESS,
        "request_id": "my:id.7",
        "trace_id": TRACE,
        "method": "POST",
        "path": "/v1/completions",
        "route": "/v1/completions",
        "status": 200,
        "model": "echo",
        "prompt_tokens": 14,
        "cached_tokens": 7,
        "generated_tokens": 5,
        "finish_reason": "length",
        "disconnected": False,
        "bytes_out": len(answer.content),
    }
    assert expected.items() <= found.items(), found
    assert 0 <= found["queue_seconds"] <= found["first_token_seconds"] <= found["seconds"]
    assert found["key"] and found["time"].endswith("+00:00")
    text = TextFormatter().format(record)
    assert '"POST /v1/completions HTTP/1.1" 200 my:id.7' in text
    assert "model=echo" in text and "generated_tokens=5" in text and "disconnected=no" in text
    for line in (text, json.dumps(found)):
        for secret in ("private", "hidden", "sk-secret"):
            assert secret not in line


def test_hostile_requests_do_not_break_lines(logged: Any, records: Any) -> None:
    odd = "x\n\u2028\u0085\x1b[31m\tz"
    key = {"x-api-key": "sk-secret"}
    bodies = [{"prompt": "a", "model": odd}, {"prompt": "a", "user": odd}]
    bodies += [{"prompt": "a", "adapter": odd}, {"prompt": "a", odd: 1}]
    for body in bodies:
        logged.http.post("/v1/completions", json=body, headers=key)
    for path in ("/a%0Ab%1B%E2%80%A8c?hidden", "/" + "long" * 1000, '/"%20status=200'):
        logged.http.get(path, headers=key)
    bad = {"x-request-id": "two words", "traceparent": "00-" + "g" * 32, **key}
    answer = logged.http.request("BREW", "/v1/models", headers=bad)
    found = records(8)
    for record in found:
        for formatter in (TextFormatter(), JsonFormatter()):
            line = formatter.format(record)
            assert len(line.splitlines()) == 1 and line.isascii() and line.isprintable(), line
            assert "hidden" not in line and "sk-secret" not in line and len(line) < 1000
    last = json.loads(JsonFormatter().format(found[-1]))
    assert last["method"] == "other" and "trace_id" not in last
    assert last["request_id"] == answer.headers["x-request-id"] != "two words"
    refused = json.loads(JsonFormatter().format(found[0]))
    assert (refused["status"], refused["error"]) == (404, "model_not_found")


def test_a_client_that_leaves_is_reported(logged: Any, records: Any) -> None:
    logged.echo.step_seconds = 0.01
    body = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    headers = {"x-api-key": "sk-secret"}
    with logged.http.stream("POST", "/v1/completions", json=body, headers=headers) as response:
        next(response.iter_lines())
    (record,) = records(1)
    logged.echo.step_seconds = 0
    assert record.fields["disconnected"] is True
    assert record.fields["finish_reason"] == "abort"
    assert record.fields["generated_tokens"] >= 1


def test_every_response_has_an_id(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(allow_hosts=[])

    def boom(*args: Any) -> None:
        raise ZeroDivisionError("a bug")

    mine = {"x-request-id": "mine"}
    answers = [
        server.http.get("/health", headers=mine),
        server.http.get("/nowhere", headers=mine),
        server.http.get("/health", headers={**mine, "host": "evil.example"}),
    ]
    monkeypatch.setattr(Service, "admit", boom)
    failed = server.http.post("/v1/completions", json={"prompt": "a"}, headers=mine)
    assert failed.status_code == 500 and "a bug" not in failed.text
    for answer in (*answers, failed):
        assert answer.headers["x-request-id"] == answer.headers["request-id"] == "mine"
    metrics = server.http.get("/metrics").text
    assert 'route="/v1/completions",status="500"} 1.0' in metrics
    assert 'code="internal",route="/v1/completions"} 1.0' in metrics.replace(
        'route="/v1/completions",code="internal"', 'code="internal",route="/v1/completions"'
    )
    assert b"x-request-id: " in server.talk(b"GARBAGE\r\n\r\n")


def test_exceptions_stay_on_one_line_in_json() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError as error:
        info = (ValueError, error, error.__traceback__)
        record = logging.LogRecord("ostro.x", logging.ERROR, "", 1, "failed %d", (3,), info)
    line = JsonFormatter().format(record)
    assert len(line.splitlines()) == 1
    found = json.loads(line)
    assert found["message"] == "failed 3" and "first\nsecond" in found["exception"]
