"""Requests for a model that is unloaded between their admission and their start in the engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from echo.model import make_model
from tiny.model_routes import Load, admin, complete, options, server_of, states
from tiny.server import RunningServer

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name in ("hidden", "two"):
        make_model(root / name)
    return root


@contextmanager
def admitted(server: RunningServer, model: str) -> Iterator[Future[httpx.Response]]:
    """A request that has been admitted, and goes on after the block."""
    service, release, stands = server.server.service, asyncio.Event(), threading.Event()
    pipeline = service.pipeline

    async def held(*arguments: Any) -> Any:
        found = await pipeline(*arguments)
        stands.set()
        await release.wait()
        return found

    service.pipeline = held  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        try:
            answer = pool.submit(complete, server, model)
            assert stands.wait(60)
            service.pipeline = pipeline  # type: ignore[method-assign]
            yield answer
        finally:
            server.loop.call_soon_threadsafe(release.set)


@pytest.mark.parametrize("load", ["on demand", "start"])
def test_a_model_that_is_unloaded_after_the_admission(folder: Path, load: Load) -> None:
    with server_of([options(folder, "hidden"), options(folder, "two", load)]) as server:
        assert complete(server, "two").status_code == 200
        with admitted(server, "two") as answer:
            assert admin(server, "/v1/models/unload", model="two").status_code == 200
        found = answer.result(60)
        if load == "on demand":
            assert found.status_code == 200, found.text
            assert states(server) == {"hidden": "loaded", "two": "loaded"}
        else:
            assert found.status_code == 503 and "'two' is unloaded" in found.text
            assert "retry-after" in found.headers and "hidden" not in found.text


def test_a_model_that_is_loaded_again_after_the_admission(folder: Path) -> None:
    with (
        server_of([options(folder, "hidden"), options(folder, "two", "on demand")]) as server,
        admitted(server, "two") as answer,
    ):
        assert admin(server, "/v1/models/unload", model="two").status_code == 200
        assert admin(server, "/v1/models/load", model="two").status_code == 200
    assert answer.result(60).status_code == 200
