"""Budgets of a fast start, in modules: what a command must not import before it does its work."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tiny.model import make_gguf

HELP = """
import contextlib, io
from ostro.entrypoints.cli import COMMANDS
for name in COMMANDS:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main([name, "--help"])
"""

SERVE = """
import os, signal, threading, time, urllib.request
def stop_when_it_listens():
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health").read()
        except OSError:
            time.sleep(0.01)
        else:
            return os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=stop_when_it_listens, daemon=True).start()
assert main(["serve", "-m", model, "--port", str(port)]) == 0
"""

RUN = 'assert main(["run", "-m", model, "-i", "hello", "-n", "3", "--device", "cpu"]) == 0'

UNUSED = "torch._dynamo torch._inductor sympy triton transformers huggingface_hub rich httpx PIL"
"""Large modules that generating text on the CPU does not use."""


def imported(code: str, *watched: str, **values: object) -> set[str]:
    """The modules among `watched` that a process has imported after it has run some code."""
    lines = ["import sys", "from ostro.entrypoints.cli import main"]
    lines += [f"{name} = {value!r}" for name, value in values.items()]
    report = f"print('imported', *[name for name in {watched} if name in sys.modules])"
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join([*lines, code, report])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    word, *found = ran.stdout.splitlines()[-1].split()
    assert word == "imported"
    return {*found}


@pytest.mark.process
def test_a_watched_module_that_is_imported_is_found() -> None:
    assert imported("import json.tool", "json.tool", "torch") == {"json.tool"}


def test_the_help_of_all_commands_imports_no_library() -> None:
    libraries = "torch numpy tokenizers jinja2 fastapi uvicorn prometheus_client soundfile"
    assert not imported(HELP, *libraries.split(), *UNUSED.split())


@pytest.mark.process
def test_a_run_on_the_cpu_imports_what_it_uses(tmp_path: Path) -> None:
    model = str(make_gguf(tmp_path / "tiny.gguf"))
    servers = ("fastapi", "uvicorn", "prometheus_client", "soundfile")
    assert imported(RUN, "torch", *servers, *UNUSED.split(), model=model) == {"torch"}


@pytest.mark.process
def test_a_server_listens_without_torch(tmp_path: Path) -> None:
    model = str(make_gguf(tmp_path / "tiny.gguf"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    heavy = imported(SERVE, "torch", "uvicorn", *UNUSED.split(), model=model, port=port)
    assert heavy == {"uvicorn"}
