"""The soak: mixed traffic of 50 clients for an hour, or for `--soak-minutes`."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from ostro.entrypoints.operations.documents.state import SWEEP_SECONDS

from .clients import (
    Outcomes,
    leave,
    read_slowly,
    run_for,
    send_too_much,
    swap_adapters,
    swap_models,
)
from .server import ROOT, Held, LoadedServer, serve
from .traffic import send_mixed_requests

CLIENTS = 50
WARM_MINUTES = 10.0
"""Time after which the processes have started their workers and filled their caches."""
LAST_SECONDS = 300
"""Time limit for the last requests, which delete what they have stored."""
MEMORY_LIMIT = 1.05
POOL = 8
"""Threads that the pools of two processes may add while they are in use."""
KEPT = {"batch"}
"""Kinds of documents that no request deletes: `RETENTION` does."""
RETENTION = 900
"""Seconds after which documents expire: more than a batch takes on a busy machine."""
SWEEP_DELAY = 30
"""Seconds that a sweep may be late."""


async def soak(server: LoadedServer, minutes: float, outcomes: Outcomes) -> Held:
    """Send mixed traffic, print what the processes hold every minute, and return it afterwards."""
    url, end = server.url, time.monotonic() + minutes * 60
    clients = [
        *(leave(url, outcomes) for _ in range(2)),
        *(read_slowly(url, outcomes) for _ in range(2)),
        send_too_much(url, outcomes),
        swap_adapters(url, outcomes, ("pirate", "french", "shout")),
    ]
    mixed = [
        swap_models(url, outcomes, "swapped", "model", change=True, end=end),
        *(send_mixed_requests(url, outcomes, end) for _ in range(CLIENTS - len(clients) - 1)),
    ]
    print(f"\n  minute  {server.held()}", flush=True)
    running = asyncio.gather(
        run_for(minutes * 60, outcomes, *clients),
        run_for(minutes * 60 + LAST_SECONDS, outcomes, *mixed),
    )
    minute = 0
    while not running.done():
        await asyncio.wait({running}, timeout=60)
        assert not outcomes.faults, outcomes.faults[:5]  # the traffic has lost clients
        minute += 1
        print(f"{minute:8}  {server.held()} responses={outcomes.total(200)}", flush=True)
    server.wait_idle(120)
    await asyncio.sleep(2)
    held = server.held()
    print(f"    idle  {held}", flush=True)
    return held


def kinds_of(store: Path) -> dict[str, int]:
    """The number of documents by kind."""
    with closing(sqlite3.connect(store / "state.db")) as database:
        return dict(database.execute("SELECT kind, count(*) FROM documents GROUP BY kind"))


def overdue(store: Path) -> int:
    """The number of documents that a sweep of expired ones has left."""
    before = time.time() - SWEEP_SECONDS - SWEEP_DELAY
    with closing(sqlite3.connect(store / "state.db")) as database:
        query = "SELECT count(*) FROM documents WHERE expires IS NULL OR expires < ?"
        return int(database.execute(query, (before,)).fetchone()[0])


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_hour_of_mixed_traffic(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    minutes: float = request.config.getoption("--soak-minutes")
    outcomes, store = Outcomes(), tmp_path / "state"
    adapters = ROOT / "plugins" / "starter" / "adapters"
    options = (
        *("--max-seqs", "32", "--store", str(store), "--retention", f"{RETENTION}s"),
        *("--adapter-root", str(adapters), "--model-root", str(adapters.parent)),
    )
    with serve(tmp_path, *options) as server:
        first = min(WARM_MINUTES, minutes / 3)
        warm = asyncio.run(soak(server, first, outcomes))
        end = asyncio.run(soak(server, minutes - first, outcomes))
        kinds, left = kinds_of(store), overdue(store)
        print(f"{dict(outcomes.statuses)}\n{kinds}, {left} overdue", flush=True)
    assert not outcomes.faults, outcomes.faults[:5]
    assert "Traceback" not in server.log.read_text(), server.log.read_text()
    assert kinds.keys() <= KEPT and not left and not list((store / "blobs").iterdir()), kinds
    assert end.processes == warm.processes and end.shared_files <= warm.shared_files
    assert end.descriptors <= warm.descriptors and end.threads <= warm.threads + POOL
    for before, after in zip(warm.resident, end.resident, strict=True):
        assert after <= MEMORY_LIMIT * before, (warm, end)
