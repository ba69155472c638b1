"""Changes of one model at once: with an echo engine in its own process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from echo.model import make_model
from tiny.model_routes import ADMIN, TIMEOUT, admin, complete, models, server_of, states, wait_until
from tiny.server import RunningServer

from ostro.core.settings import Settings

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models by name of their folders; "broken" cannot be loaded."""
    root = tmp_path_factory.mktemp("models")
    for name in ("one", "two", "broken"):
        make_model(root / name)
    return root


def add(server: RunningServer, reference: str) -> httpx.Response:
    return admin(server, "/v1/models/load", model="new", reference=reference)


@contextmanager
def held_finds(server: RunningServer) -> Iterator[threading.Event]:
    """Loads of the server wait until the event is set."""
    manager, gate = server.server.manager, threading.Event()
    find = manager.find

    async def held(settings: Settings) -> Any:
        while not gate.is_set():
            await asyncio.sleep(0.01)
        return await find(settings)

    manager.find = held
    try:
        yield gate
    finally:
        gate.set()
        manager.find = find


@pytest.mark.parametrize(
    "references",
    [
        ["broken", "one"],
        ["broken", "one", "broken", "one"],
        ["missing", "broken", "one", "broken"],
        ["broken", "missing", "broken"],
        ["one", "broken", "one"],
    ],
    ids=" ".join,
)
def test_loads_of_a_new_name_at_once(folder: Path, references: list[str]) -> None:
    """Each load succeeds, or fails with its own error; a model that is loaded can be unloaded."""
    with server_of(models(folder, "two"), model_root=str(folder)) as server:
        with ThreadPoolExecutor(len(references)) as pool, held_finds(server) as gate:
            first = pool.submit(add, server, references[0])
            if references[0] != "missing":  # it is found before it is listed
                wait_until(server, "new", "loading")
            loads = [first, *(pool.submit(add, server, each) for each in references[1:])]
            time.sleep(0.3)  # the others wait for the first one
            gate.set()
            answers = [load.result(60) for load in loads]
        for reference, answer in zip(references, answers, strict=True):
            expected = {"one": 200, "broken": 422, "missing": 404}[reference]
            assert answer.status_code == expected, answer.text
        if "one" not in references:
            assert states(server) == {"two": "loaded"}
            return
        assert states(server) == {"two": "loaded", "new": "loaded"}
        assert complete(server, "new").status_code == 200
        assert admin(server, "/v1/models/unload", model="new").status_code == 200
        assert states(server) == {"two": "loaded", "new": "unloaded"}


@pytest.mark.parametrize("route", ["requantize", "unload", "status", "load"])
def test_other_routes_while_a_new_model_fails(folder: Path, route: str) -> None:
    with server_of(models(folder, "two"), model_root=str(folder)) as server:
        with ThreadPoolExecutor(2) as pool, held_finds(server) as gate:
            first = pool.submit(add, server, "broken")
            wait_until(server, "new", "loading")
            url = f"{server.url}/v1/models/new/{route}"
            if route == "requantize":
                second = pool.submit(httpx.post, url, json={}, headers=ADMIN, timeout=TIMEOUT)
            elif route == "status":
                second = pool.submit(httpx.get, url, headers=ADMIN, timeout=TIMEOUT)
            else:
                second = pool.submit(admin, server, f"/v1/models/{route}", model="new")
            time.sleep(0.2)
            gate.set()
            assert first.result(60).status_code == 422
            expected = {"status": 200, "load": 422}.get(route, 404)
            assert second.result(60).status_code == expected, second.result().text
        assert states(server) == {"two": "loaded"}


def test_changes_of_one_model_at_once_keep_the_last_settings(folder: Path) -> None:
    with server_of(models(folder, "two"), model_root=str(folder)) as server:
        assert add(server, "one").status_code == 200
        with ThreadPoolExecutor(2) as pool, held_finds(server) as gate:
            first = pool.submit(add, server, "two")
            wait_until(server, "new", "loaded")
            time.sleep(0.2)
            second = pool.submit(admin, server, "/v1/models/new/requantize", quant="q8_0")
            time.sleep(0.2)
            gate.set()
            assert first.result(60).status_code == second.result(60).status_code == 200
        settings = server.server.manager.models["new"].options.settings
        assert settings.quant == "q8_0" and settings.reference == str(folder / "two")
