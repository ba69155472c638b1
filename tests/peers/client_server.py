"""A server for client libraries, and programs that use them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from environments import default_root, python_of

ROOT = Path(__file__).resolve().parents[2]
PYTHON = python_of(default_root(), "clients")
NODE_MODULES = default_root() / "clients" / "node_modules"
KEY, ADMIN = "secret", "admin"
OFFLINE = {"HF_HUB_OFFLINE": "1", "LANGSMITH_TRACING": "false", "NO_PROXY": "*"}
START_SECONDS = 120
EXAMPLES = os.environ.get("SCHEMATHESIS_EXAMPLES", "10")
"""Examples of schemathesis for each operation and phase."""


@contextmanager
def serve(log: Path, *options: str | Path) -> Iterator[str]:
    """The URL of a server with a store in memory, by default of the starter model.

    Raises RuntimeError with its log if it is not ready in time.
    """
    command = [sys.executable, "-m", "ostro", "serve", *options, "--port", "0"]
    keys = ["--api-key", KEY, "--admin-key", ADMIN]
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "--store", "memory", "--threads", "1", *keys],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
    try:
        yield url_of(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def url_of(process: subprocess.Popen[bytes], log: Path) -> str:
    """The URL of a server as soon as it is ready. Raises RuntimeError as `serve`."""
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        url = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        if url and is_ready(url[0]):
            return url[0]
        time.sleep(0.2)
    raise RuntimeError(f"the server is not ready: {log.read_text()}")


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def run(*command: str | Path, folder: Path | None = None) -> Any:
    """The JSON in the last line that a client prints."""
    return json.loads(lines_of(*command, folder=folder)[-1])


def lines_of(*command: str | Path, folder: Path | None = None) -> list[str]:
    """The lines that a client prints."""
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **OFFLINE},
        timeout=900,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return ran.stdout.splitlines()


def documented_fields() -> dict[str, dict[str, str]]:
    """The status of each field of each route in docs/http-api.md."""
    statuses: dict[str, dict[str, str]] = {}
    for line in (ROOT / "docs" / "http-api.md").read_text().splitlines():
        if line.startswith("## "):
            fields = statuses.setdefault(line.removeprefix("## "), {})
        elif match := re.match(r"\| `([^`]+)` \| (\w+) \|", line):
            fields[match[1]] = match[2]
    return statuses


def check_schema(url: str, folder: Path) -> None:
    """Valid and invalid requests of schemathesis on all routes: no 5xx, all responses match theirs.

    A request that fits its schema may still be rejected, for the model or another field, so the
    check of acceptance is left out. `folder` is its working directory.
    """
    if not PYTHON.exists():
        pytest.skip("run tests/peers/environments.py clients")
    ran = subprocess.run(
        [
            *(PYTHON, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"),
            *("--checks", "all", "--exclude-checks", "positive_data_acceptance"),
            *("--mode", "all", "--header", f"Authorization: Bearer {KEY}"),
            *("--max-examples", EXAMPLES, "--seed", "1", "--request-timeout", "60"),
        ],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **OFFLINE},
        timeout=1700,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-12000:]
    assert is_ready(url)
