"""While an adapter is read nothing polls: a driver sleeps until a message or the read's end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from echo.gated import GatedEngine
from echo.thread import ThreadEngine

from ostro.core.errors import AdapterError
from ostro.core.ipc import client
from ostro.core.ipc.client import AsyncEngine
from ostro.core.ipc.process import ProcessEngine
from ostro.core.records import Settings
from ostro.entrypoints.local_engine import LocalClient, LocalEngine

BLOCKED = 0.4
"""Seconds that a read takes in these tests."""
FEW = 12
"""Passes of the loop that starting, two messages and the end of a read may take."""


def make_process() -> AsyncEngine:
    return ProcessEngine(Settings(reference="nowhere"), engine="echo.gated:open_engine")


def make_thread() -> AsyncEngine:
    return ThreadEngine(lambda report: GatedEngine())


def make_local() -> AsyncEngine:
    return LocalClient(LocalEngine(GatedEngine()))


@pytest.mark.parametrize("make", [make_process, make_thread, make_local])
def test_a_driver_sleeps_until_a_read_ends(
    make: Callable[[], AsyncEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "HEARTBEAT", 60.0)  # no other message wakes the driver

    async def main() -> None:
        engine = make()
        gate = tmp_path / "gate"
        try:
            await engine.start()
            load = asyncio.ensure_future(engine.adapt("load", name="a", reference=str(gate)))
            start, ticks = time.monotonic(), 0
            while time.monotonic() < start + BLOCKED:
                await asyncio.sleep(0.02)
                ticks += 1
            assert ticks > 5, "the read must not block the event loop"
            assert (await engine.stats()).steps < FEW, "the driver must not poll"
            gate.touch()
            with pytest.raises(AdapterError, match="the gate is open"):
                await load
        finally:
            gate.touch()
            await engine.close()

    asyncio.run(asyncio.wait_for(main(), 240))


def test_a_synchronous_caller_sleeps_until_a_read_ends(tmp_path: Path) -> None:
    engine, gate = GatedEngine(), tmp_path / "gate"
    opener = threading.Timer(BLOCKED, gate.touch)
    opener.start()
    try:
        with pytest.raises(AdapterError, match="the gate is open"):
            LocalEngine(engine).adapt("load", name="a", reference=str(gate))
        assert engine.passes < FEW
    finally:
        opener.join()
        engine.close()
