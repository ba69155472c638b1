"""A route that blocks the event loop is logged; /ready says what holds the engine's loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from echo.held import SLEEPY, Gate, module, plugins_with
from echo.server import PATIENCE, Start, wait_until

from ostro.core.ipc import client
from ostro.core.messages.commands import Held
from ostro.core.plugins.manager import PluginManager
from ostro.core.plugins.watchdog import NOTICES
from ostro.entrypoints.http.loop_watchdog import EventLoopWatchdog

FIRST = NOTICES[0]


def checked(call: Any, gate: Gate, plugins: PluginManager, times: int) -> None:
    """Run a blocking call in an event loop, and check the loop meanwhile."""
    made = list[EventLoopWatchdog]()
    answered = threading.Semaphore(0)

    async def serve() -> None:
        made.append(EventLoopWatchdog(plugins))
        answer = made[0].answer
        made[0].answer = lambda: (answer(), answered.release())  # type: ignore[method-assign]
        await asyncio.to_thread(made[0].check)
        await asyncio.to_thread(answered.acquire)
        call()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    gate.entered.acquire()
    for _ in range(times):
        made[0].check()
    gate.opened.release()
    thread.join()
    for _ in range(2):
        made[0].check()


def test_a_route_that_blocks_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    sleepy = module("sleepy", SLEEPY, gate=gate)
    checked(sleepy.forward, gate, plugins_with(sleepy), FIRST + 2)
    assert caplog.messages == [
        f"plugin sleepy has held the event loop of HTTP for {FIRST} s at sleepy.py:3",
        f"the event loop of HTTP goes on after {FIRST} s",
    ]


def test_a_loop_that_answers_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def serve() -> None:
        watchdog = EventLoopWatchdog(PluginManager())
        for _ in range(2 * FIRST):
            await asyncio.to_thread(watchdog.check)
            await asyncio.sleep(0)

    asyncio.run(serve())
    assert not caplog.messages


def test_ready_names_the_plugin_that_holds_the_engine(start: Any) -> None:
    server = start()
    engine, held = server.service.engine, "plugin slow has held the engine's loop for 10 s"
    engine._deliver(Held(held))
    ready = server.http.get("/ready")
    assert ready.status_code == 503 and ready.json()["status"] == "held"
    assert held in ready.json()["error"]["message"]
    assert server.http.get("/health").status_code == 200
    assert server.complete("ok").status_code == 200, "requests wait for the engine"
    engine._deliver(Held(""))
    assert server.http.get("/ready").json()["status"] == "ready"


def test_health_names_what_holds_a_hung_engine(start: Start) -> None:
    server = start()
    engine = server.service.engine
    with ThreadPoolExecutor(1) as pool:
        with server.paused() as stands:
            answer = pool.submit(server.complete, "abc")
            assert stands.wait(PATIENCE)
            wait_until(lambda: server.loop.advance(client.HEARTBEAT) or engine.silence)
            engine.patience, engine.held = 0.0, "plugin slow has held it"
            for path in ("/health", "/ready"):
                error = server.http.get(path).json()["error"]
                assert error["code"] == "engine_hung"
                assert "plugin slow has held it" in error["message"]
        assert answer.result().status_code == 200
