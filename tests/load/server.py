"""A server under load: `ostro serve` in processes of its own, and what these processes hold."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path("/dev/shm")
START_SECONDS, STOP_SECONDS = 120, 90
MIB = 1 << 20
SAMPLE = re.compile(r"^(\S+?)(?:\{.*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Held:
    """What the processes of a server hold. `resident` is MiB by process, in the order of start."""

    processes: int
    descriptors: int
    threads: int
    shared_files: int
    resident: tuple[float, ...]


@dataclass(frozen=True)
class LoadedServer:
    """A server under load. `url` has no path."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels. Raises KeyError for a metric that is missing."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        values = [float(value) for found, value in SAMPLE.findall(text) if found == name]
        if not values:
            raise KeyError(name)
        return sum(values)

    def pids(self) -> list[int]:
        """The server's process and its descendants."""
        found = [self.process.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        return found

    def held(self) -> Held:
        """What the processes hold now."""
        pids, page = self.pids(), os.sysconf("SC_PAGE_SIZE")
        folders = [Path(f"/proc/{pid}") for pid in pids]
        pages = [int((each / "statm").read_text().split()[1]) for each in folders]
        return Held(
            processes=len(pids),
            descriptors=sum(len(list((each / "fd").iterdir())) for each in folders),
            threads=sum(len(list((each / "task").iterdir())) for each in folders),
            shared_files=len(list(SHARED.iterdir())),
            resident=tuple(round(count * page / MIB, 1) for count in pages),
        )

    def wait_idle(self, seconds: float = 30.0) -> None:
        """Wait until no sequence runs or waits and no block is in use."""
        names = (
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:kv_cache_usage_perc",
            "ostro_kv_bytes",
        )
        deadline = time.monotonic() + seconds
        while any(left := {name: self.metric(name) for name in names}.values()):
            assert time.monotonic() < deadline, f"still in use: {left}"
            time.sleep(0.2)


@contextmanager
def serve(folder: Path, *options: str) -> Iterator[LoadedServer]:
    """Serve the starter model with one thread until the block ends, then expect exit code 0."""
    log = folder / "server.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*(sys.executable, "-m", "ostro", "serve", "--port", "0", "--threads", "1"), *options],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not (found := re.search(r"(http://127\.0\.0\.1:\d+)/v1, ready", log.read_text())):
            assert time.monotonic() < deadline and process.poll() is None, log.read_text()
            time.sleep(0.1)
        server = LoadedServer(found[1], process, log)
        yield server
        pids = server.pids()
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_SECONDS) == 0, log.read_text()
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()], "a process is left"
    finally:
        process.kill()
        process.wait()
