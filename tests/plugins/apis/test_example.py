"""The example of an HTTP API in a wheel: a folder without a web framework."""

from __future__ import annotations

import ast
import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from echo.server import Running, Start

from ostro.entrypoints.operations.access.keys import KeyRing
from ostro.entrypoints.operations.access.quotas import Quotas
from ostro.entrypoints.operations.executor import make_executor

EXAMPLE = Path(__file__).resolve().parents[3] / "docs/examples/plugins/ostro-api-llamacpp"
PACKAGE = EXAMPLE / "ostro_api_llamacpp"
CODE_LINES = 120
"""Code lines that an API family with one streamed route needs at most."""


@pytest.fixture(scope="module")
def running(start: Start) -> Iterator[Running]:
    sys.path.insert(0, str(EXAMPLE))
    try:
        import ostro_api_llamacpp

        yield start(plugin=ostro_api_llamacpp)
    finally:
        sys.path.remove(str(EXAMPLE))


def test_it_imports_the_public_surface_and_no_web_framework() -> None:
    imported, lines = set(), 0
    for file in PACKAGE.glob("*.py"):
        text = file.read_text()
        lines += sum(bool(line.strip()) for line in text.splitlines())
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module)
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
    outside = imported - {name for name in imported if name in sys.stdlib_module_names}
    packages = {name.partition(".")[0] for name in outside if name} - sys.stdlib_module_names
    assert packages == {"ostro", "ostro_api_llamacpp", "msgspec"}
    assert lines <= CODE_LINES


def test_the_text_is_that_of_completions(running: Running) -> None:
    request = {"prompt": "hello world", "max_tokens": 4, "temperature": 0}
    expected = running.post("/v1/completions", **request).json()
    body = {"prompt": "hello world", "n_predict": 4, "temperature": 0}
    answer = running.post("/completion", **body).json()
    assert answer["content"] == expected["choices"][0]["text"]
    assert answer["tokens_predicted"] == expected["usage"]["completion_tokens"]
    assert answer["model"] == expected["model"] and answer["stop"] is True
    response = running.post("/completion", **body, stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line]
    assert "".join(event["content"] for event in events) == answer["content"]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]


def test_its_errors_and_its_document(running: Running) -> None:
    for body, param in (({"prompt": "a", "mirostat": 1}, "mirostat"), ({}, "prompt")):
        response = running.post("/completion", **body)
        assert response.status_code == 400 and response.json()["error"]["param"] == param
    operation = running.http.get("/openapi.json").json()["paths"]["/completion"]["post"]
    assert operation["summary"] == "Continue a prompt"
    assert operation["requestBody"]["content"]["application/json"]["example"]["n_predict"] == 32


def test_its_requests_run_in_batches(running: Running) -> None:
    state = running.app.state
    execute = make_executor(state.routes, state.operations, KeyRing(), Quotas())

    def run(path: str, **body: Any) -> tuple[int, Any]:
        work = execute(path, json.dumps(body).encode(), "")
        status, data = asyncio.run_coroutine_threadsafe(work, running.loop).result(60)
        return status, json.loads(data)

    status, answer = run("/completion", prompt="hello world", n_predict=3)
    assert status == 200 and answer["tokens_predicted"] == 3
    status, answer = run("/completion", prompt="hello world", stream=True)
    assert status == 400 and answer["error"]["param"] == "stream"
    status, answer = run("/completion", prompt=1)
    assert status == 400 and answer["error"]["param"] == "prompt"
    status, answer = run("/v1/files", file="a")  # a form, which no handler reads
    assert status == 404 and "/v1/files" in answer["error"]["message"]
