"""Load: streams beside clients that misbehave, and ten times as many clients as rows."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .clients import (
    BUSY,
    CHAT,
    Outcomes,
    chat,
    encode,
    expect,
    give_up,
    insist,
    leave,
    read_slowly,
    run_for,
    send_too_much,
    stream_chats,
    swap_adapters,
    swap_models,
    unload_model,
)
from .server import ROOT, LoadedServer, serve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
ADAPTERS = ROOT / "plugins" / "starter" / "adapters"
LATENCY_LIMIT, MEMORY_LIMIT = 1.5, 1.05
"""Limits on what the load may multiply."""
ROUNDS = 3
"""Measurements of the latency. Other work on the machine disturbs one of them, not all."""
BUSY_SHARE = 1 / 3
"""Share of the quiet rate that busy processes must leave."""
POOL = 8
"""Threads that the pools of two processes may add while they are in use."""


def misbehaving(url: str, outcomes: Outcomes, count: int, change: bool) -> list[Awaitable[None]]:
    """Clients that disconnect, read slowly, send too much, swap adapters and swap a model."""
    return [
        *(leave(url, outcomes) for _ in range(count)),
        *(read_slowly(url, outcomes) for _ in range(count)),
        send_too_much(url, outcomes),
        swap_adapters(url, outcomes, ("pirate", "french", "shout")),
        swap_models(url, outcomes, "swapped", "model", change=change),
    ]


async def measure(
    server: LoadedServer, streams: int, seconds: float, bad: int, *, change: bool = False
) -> Outcomes:
    """Run streams for a time, beside this number of misbehaving clients of a kind.

    change: the model that is swapped is also requantized and reloaded while it is used.
    """
    outcomes = Outcomes()
    others = misbehaving(server.url, outcomes, bad, change) if bad else []
    clients = [stream_chats(server.url, outcomes) for _ in range(streams)]
    await run_for(seconds, outcomes, *clients, *others)
    if bad:
        await unload_model(server.url, outcomes, "swapped")
    server.wait_idle()
    assert not outcomes.faults, outcomes.faults[:5]
    return outcomes


@contextmanager
def serving(tmp_path: Path, streams: int) -> Iterator[LoadedServer]:
    """A server with rows for these streams and for the clients that misbehave."""
    options = (
        *("--max-seqs", str(streams + 16), "--store", "none"),
        *("--adapter-root", str(ADAPTERS), "--model-root", str(ADAPTERS.parent)),
    )
    with serve(tmp_path, *options) as server:
        yield server
    assert "Traceback" not in server.log.read_text(), server.log.read_text()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("streams", "seconds"), [(16, 6), (64, 60)])
def test_streams_beside_clients_that_misbehave(tmp_path: Path, streams: int, seconds: int) -> None:
    """No fault, and nothing is held at the end that was not held before."""
    bad = streams // 16
    with serving(tmp_path, streams) as server:
        asyncio.run(measure(server, streams, 3, bad, change=True))  # warms up
        before = server.held()
        loaded = asyncio.run(measure(server, streams, seconds, bad, change=True))
        after = server.held()
    print(f"before {before}\nafter  {after}\n{dict(loaded.statuses)}")
    assert after.processes == before.processes and after.shared_files <= before.shared_files
    assert after.descriptors <= before.descriptors and after.threads <= before.threads + POOL


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("streams", "seconds"), [(16, 6), (64, 60)])
def test_latency_beside_clients_that_misbehave(tmp_path: Path, streams: int, seconds: int) -> None:
    """They multiply the gaps between two tokens by 1.5 at most (95 %), on a quiet machine."""
    bad, ratios = streams // 16, []
    with serving(tmp_path, streams) as server:
        asyncio.run(measure(server, streams, 3, bad))  # warms up
        for _ in range(ROUNDS):
            quiet = asyncio.run(measure(server, streams, seconds, 0))
            loaded = asyncio.run(measure(server, streams, seconds, bad))
            ratios.append(loaded.quantile(0.95) / quiet.quantile(0.95))
            print(f"\nquiet  {quiet.report(seconds)}\nloaded {loaded.report(seconds)}")
            if ratios[-1] <= LATENCY_LIMIT:
                break
    assert min(ratios) <= LATENCY_LIMIT, ratios


@pytest.mark.timeout(600)
def test_streams_beside_busy_processes(tmp_path: Path) -> None:
    """One busy process per core leaves the streams a third of their quiet rate."""
    seconds, shares = 5.0, list[float]()
    with serve(tmp_path, "--max-seqs", "8", "--store", "none") as server:
        asyncio.run(measure(server, 8, 3, 0))  # warms up
        for _ in range(ROUNDS):
            quiet = asyncio.run(measure(server, 8, seconds, 0))
            with busy(len(os.sched_getaffinity(0)), 60):
                loaded = asyncio.run(measure(server, 8, seconds, 0))
            shares.append(len(loaded.gaps) / len(quiet.gaps))
            print(f"\nquiet {quiet.report(seconds)}\nbusy  {loaded.report(seconds)}")
            if shares[-1] >= BUSY_SHARE:
                break
    assert max(shares) >= BUSY_SHARE, shares


@contextmanager
def busy(count: int, seconds: float) -> Iterator[None]:
    """Keep processes busy until the end of the block, at most for a time."""
    loop = f"import time\nwhile time.process_time() < {seconds}: pass"
    processes = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.timeout(300)
def test_a_good_answer_after_200_clients_that_give_up(tmp_path: Path) -> None:
    async def main(url: str) -> float:
        data = encode(CHAT, chat(900))
        await asyncio.gather(*(give_up(url, data, 0.5) for _ in range(200)))
        begun, outcomes = time.monotonic(), Outcomes()
        await expect(url, outcomes, CHAT, chat(5, stream=False))
        assert not outcomes.faults, outcomes.faults
        return time.monotonic() - begun

    with serve(tmp_path, "--max-seqs", "8", "--store", "none") as server:
        seconds = asyncio.run(main(server.url))
        server.wait_idle()
    print(f"\na good answer after {seconds:.1f} s")
    assert seconds <= 5


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seconds", [20, 600])
def test_ten_times_as_many_clients_as_rows(tmp_path: Path, seconds: int) -> None:
    rows, parts, outcomes = 4, 10, Outcomes()
    options = ("--max-seqs", str(rows), "--max-queue", str(4 * rows), "--store", "none")

    async def load(server: LoadedServer) -> list[tuple[float, ...]]:
        clients = [insist(server.url, outcomes) for _ in range(10 * rows)]
        running = asyncio.ensure_future(run_for(seconds * 1.3, outcomes, *clients))
        await asyncio.sleep(seconds * 0.2)  # warms up
        resident = [server.held().resident]
        for _ in range(parts):
            await asyncio.sleep(seconds / parts)
            resident.append(server.held().resident)
        await running
        return resident

    with serve(tmp_path, *options) as server:
        resident = asyncio.run(load(server))
        server.wait_idle()
    print(f"\n{outcomes.report(seconds)}\n{dict(outcomes.statuses)}")
    print("MiB of each process:", *(f"\n{each}" for each in resident))
    assert not outcomes.faults, outcomes.faults[:5]
    assert outcomes.total(200) and sum(map(outcomes.total, BUSY))
    for process in zip(*resident, strict=True):
        # A short run on a busy machine ends before all steps have run for the first time.
        limit = MEMORY_LIMIT if seconds > 60 else 1.2
        assert max(process) <= limit * process[0], process
