"""While an adapter is read nothing polls: a driver sleeps until a message or the read's end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from echo.gated import GatedEngine
from echo.thread import ThreadEngine

from ostro.core.errors import AdapterError
from ostro.core.ipc import client
from ostro.core.ipc.client import AsyncEngine
from ostro.core.ipc.process import ProcessEngine
from ostro.core.messages.commands import LoadAdapter
from ostro.core.settings import Settings
from ostro.entrypoints.python.engine import LocalClient, LocalEngine

QUESTIONS = 200
BLOCKED = 0.4
"""Seconds that a read takes in the tests of real time."""
FEW = 12
"""Passes of the loop that starting, two messages and the end of a read may take."""


def make_process() -> AsyncEngine:
    return ProcessEngine(Settings(reference="nowhere"), engine="echo.gated:open_engine")


def make_thread() -> AsyncEngine:
    return ThreadEngine(lambda report: GatedEngine())


def make_local() -> AsyncEngine:
    return LocalClient(LocalEngine(GatedEngine()))


def run(
    make: Callable[[], AsyncEngine],
    gate: Path,
    monkeypatch: pytest.MonkeyPatch,
    test: Callable[[AsyncEngine], Awaitable[None]],
) -> None:
    """Test an engine while it reads an adapter, which lasts until the gate is there."""
    monkeypatch.setattr(client, "HEARTBEAT", 3600.0)  # no other message wakes the driver

    async def main() -> None:
        engine = make()
        try:
            await engine.start()
            command = LoadAdapter(name="a", reference=str(gate))
            load = asyncio.ensure_future(engine.adapt(command))
            await test(engine)
            gate.touch()
            with pytest.raises(AdapterError, match="the gate is open"):
                await load
        finally:
            gate.touch()
            await engine.close()

    asyncio.run(asyncio.wait_for(main(), 240))


every_client = pytest.mark.parametrize("make", [make_process, make_thread, make_local])


@pytest.mark.sample(2)
@every_client
def test_a_driver_answers_during_a_read_without_further_passes(
    make: Callable[[], AsyncEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(engine: AsyncEngine) -> None:
        await asyncio.sleep(0)  # the command is sent
        passes = [(await engine.stats()).steps for _ in range(QUESTIONS)]
        assert passes[-1] - passes[0] == QUESTIONS - 1, "the driver must not poll"

    run(make, tmp_path / "gate", monkeypatch, test)


@pytest.mark.process
@every_client
def test_a_driver_sleeps_until_a_read_ends(
    make: Callable[[], AsyncEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(engine: AsyncEngine) -> None:
        await asyncio.sleep(BLOCKED)
        assert (await engine.stats()).steps < FEW, "the driver must not poll"

    run(make, tmp_path / "gate", monkeypatch, test)


@pytest.mark.process
def test_a_synchronous_caller_sleeps_until_a_read_ends(tmp_path: Path) -> None:
    engine, gate = GatedEngine(), tmp_path / "gate"
    opener = threading.Timer(BLOCKED, gate.touch)
    opener.start()
    try:
        with pytest.raises(AdapterError, match="the gate is open"):
            LocalEngine(engine).adapt(LoadAdapter(name="a", reference=str(gate)))
        assert engine.passes < FEW
    finally:
        opener.join()
        engine.close()
