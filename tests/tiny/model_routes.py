"""Requests to the routes that load models, of a server with an echo engine in its own process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import httpx

from ostro.core.settings import Settings
from ostro.entrypoints.serve_config import ModelOptions
from tiny.server import RunningServer, serving_models

ENGINE = "echo.engine:open_engine"
ADMIN = {"Authorization": "Bearer admin"}
TIMEOUT = 240
"""Seconds. On a busy machine, a queue of loads takes more than a minute."""
Load = Literal["start", "on demand"]


def options(folder: Path, name: str, load: Load = "start", *aliases: str) -> ModelOptions:
    settings = Settings(reference=str(folder / name), name=name)
    return ModelOptions(settings=settings, load=load, aliases=aliases)


def models(folder: Path, *names: str, load: Load = "start") -> list[ModelOptions]:
    return [options(folder, name, load) for name in names]


@contextmanager
def server_of(configured: list[ModelOptions], **fields: Any) -> Iterator[RunningServer]:
    fields = {"admin_key": "admin", "engine": ENGINE, **fields}
    with serving_models(configured, **fields) as server:
        yield server


def admin(server: RunningServer, path: str, **body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, headers=ADMIN, timeout=TIMEOUT)


def status(server: RunningServer, model: str) -> dict[str, Any]:
    url = f"{server.url}/v1/models/{model}/status"
    response = httpx.get(url, headers=ADMIN, timeout=TIMEOUT)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def complete(server: RunningServer, model: str | None = None, **body: Any) -> httpx.Response:
    body = {"prompt": "hello", "max_tokens": 3, **body}
    if model is not None:
        body["model"] = model
    return server.post("/v1/completions", **body)


def states(server: RunningServer) -> dict[str, str]:
    return {each["id"]: each["state"] for each in server.get("/v1/models").json()["data"]}


def wait_until(server: RunningServer, model: str, state: str) -> None:
    deadline = time.monotonic() + 120
    while states(server).get(model) != state:
        assert time.monotonic() < deadline
        time.sleep(0.02)
