"""Fixtures for tests of hostile files: an opener in a separate process, and a fuzzer."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Opens the given files in order, without torch; prints the result of each and the number of lines
# of Python that it took, which is the same on every machine.
OPENER = r"""
import json, pathlib, re, sys
from ostro.core.errors import OstroError
from ostro.core.records import resolve
from tiny.steps import count_lines
reader, *files = sys.argv[1:]
open_file, results = resolve(reader), []
for file in files:
    result = ["opened", ""]
    def open_it():
        try:
            container = open_file(pathlib.Path(file))
            result[1] = ",".join(container.tensors)
        except OstroError as error:
            result[:] = type(error).__name__, str(error)
    lines = count_lines(open_it)
    results.append([*result, lines])
# Not ru_maxrss: that begins at what the parent had.
peak = int(re.search(r"VmHWM:\s*(\d+)", pathlib.Path("/proc/self/status").read_text())[1]) / 1024
print(json.dumps({"results": results, "peak_mb": peak, "torch": "torch" in sys.modules}))
"""


@pytest.fixture(scope="session")
def open_apart() -> Callable[[str, list[Path]], dict[str, Any]]:
    """Open files with a reader in a fresh process: [kind, message, lines] of each, peak MB."""

    def run(reader: str, files: list[Path]) -> dict[str, Any]:
        command = [sys.executable, "-c", OPENER, reader, *map(str, files)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    return run


@pytest.fixture
def spoil() -> Callable[[bytes, int], Iterator[bytes]]:
    """Yield copies of a file, each with a few bytes changed, truncated, removed or repeated.

    Half of the changes are in the first 200 bytes, which contain the counts and lengths.
    """

    def copies(good: bytes, count: int) -> Iterator[bytes]:
        rng = random.Random(0)
        extremes = [0, 1, 0x7F, 0x80, 0xFF]
        for _ in range(count):
            bad = bytearray(good)
            for _ in range(rng.randint(1, 4)):
                at = rng.randrange(min(len(bad), rng.choice([200, len(bad)])) or 1)
                match rng.randrange(6):
                    case 0:
                        del bad[at:]
                    case 1:
                        del bad[at : at + rng.randint(1, 16)]
                    case 2:
                        bad[at:at] = bad[at : at + rng.randint(1, 16)]
                    case 3:
                        bad[at : at + 1] = bytes([rng.choice(extremes)])
                    case 4:
                        bad[at : at + 8] = rng.choice([2**63, 2**64 - 1, 2**40, 0]).to_bytes(
                            8, "little"
                        )
                    case _:
                        bad[at : at + 1] = rng.randbytes(1)
            yield bytes(bad)

    return copies
