"""Memory of the HTTP server after requests with large bodies."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import threading

import pytest
from echo.server import Start, wait_until

from ostro.entrypoints.http import budget

PROGRAM = """
import ctypes, resource, sys, threading
from pathlib import Path
from ostro.entrypoints.http.budget import trim_memory

resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20

def work():
    blocks = [libc.malloc(64 << 10) for _ in range(3000)]
    for block in blocks:
        ctypes.memset(block, 1, 64 << 10)
    for block in blocks[:-1]:
        libc.free(block)

thread = threading.Thread(target=work)
thread.start()
thread.join()
before = rss()
trim_memory()
print(before, rss())
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_memory_is_returned() -> None:
    out = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    before, after = map(int, out.stdout.split())
    assert before - after > 100, (before, after)


LARGE = """
import ctypes, resource, sys, threading
from pathlib import Path
from ostro.entrypoints.http.budget import BodyBudget, trim_memory

resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
if sys.argv[1] == "server":
    BodyBudget(None)

def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20

def work():
    bytearray(b"x" * (30 << 20))
    blocks = [bytearray(b"x" * (1 << 20)) for _ in range(40)]
    blocks.clear()
    trim_memory()

before = rss()
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(rss() - before)
"""


@pytest.mark.process
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="sets parameters of glibc")
def test_large_blocks_are_returned() -> None:
    """Without the parameters of the server, an arena keeps the blocks."""
    kept = {}
    for kind in ("server", "plain"):
        command = [sys.executable, "-c", LARGE, kind]
        kept[kind] = int(subprocess.run(command, capture_output=True, check=True).stdout)
    assert kept["plain"] > 30 and kept["server"] < 10, kept


def test_memory_is_trimmed_after_large_bodies(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed = threading.Event()
    monkeypatch.setattr(budget, "TRIM_SECONDS", 1000.0)
    monkeypatch.setattr(budget, "trim_memory", trimmed.set)
    server = start()
    assert server.complete("hello").status_code == 200
    server.loop.advance(1000)
    assert server.http.get("/health").status_code == 200 and not trimmed.is_set()
    for _ in range(2):
        body = json.dumps({"prompt": "word " * 40_000}).encode()
        headers = {"content-type": "application/json"}
        answer = server.http.post("/v1/completions", content=body, headers=headers)
        assert answer.status_code == 400
        assert server.http.get("/health").status_code == 200 and not trimmed.is_set()
        wait_until(lambda: server.loop.advance(1000) or trimmed.is_set())
        trimmed.clear()
