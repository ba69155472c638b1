"""`ostro serve` with the starter model in a process of its own, with limits and faults."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

import ostro

MEMORY = 32 << 30
"""Limit of the address space of each process; torch maps more than it uses."""
ADAPTER = Path(ostro.__file__).parent / "plugins/starter/adapters/pirate"
ENDLESS = {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True}
SHORT = {"prompt": "The sea is", "max_tokens": 8, "ignore_eos": True, "temperature": 0}


class ServerProcess:
    """A server with the adapter "pirate"; `url` once it is ready. `files` limits descriptors."""

    def __init__(self, *options: str, files: int = 1024) -> None:
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

        command = [sys.executable, "-m", "ostro", "serve", "--port", "0"]
        command += ["--adapter", f"pirate={ADAPTER}", *options]
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            command,
            stdout=self.log,
            stderr=self.log,
            preexec_fn=limit,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.url = ""
        wait_for(lambda: bool(self.find_url()) or self.process.poll() is not None, 180)
        self.http = httpx.Client(base_url=self.url, timeout=60)

    def find_url(self) -> str:
        found = re.search(r" at (http://\S+)/v1, ready in", self.printed())
        self.url = found[1] if found else ""
        return self.url

    def printed(self) -> str:
        """What the processes have printed so far."""
        return Path(f"/proc/self/fd/{self.log.fileno()}").read_text()

    def complete(self, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={**SHORT, **fields})

    def text(self, **fields: Any) -> str:
        answer = self.complete(**fields)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    def metric(self, name: str) -> float:
        """The sum of all samples of a metric; 0 without any."""
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if re.match(rf"{name}[ {{]", line))

    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def engine(self) -> int:
        """The process id of the engine."""
        for pid in self.children():
            if b"ostro.core.ipc.process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        raise AssertionError("there is no engine process")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit code once all processes have ended."""
        children = self.children()
        self.process.send_signal(number)
        return self.wait(children)

    def wait(self, children: list[int]) -> int:
        """Wait for the end of all processes; return the server's exit code."""
        code = self.process.wait(60)
        wait_for(lambda: not any(map(alive, children)), 30)
        return code

    def kill(self) -> None:
        """End what a failed test has left."""
        for pid in [*self.children(), self.process.pid] if self.process.poll() is None else ():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.http.close()
        self.log.close()


class Stream:
    """A streamed completion in a thread: its status, and the lines that have come."""

    def __init__(self, url: str, body: Mapping[str, Any] = ENDLESS) -> None:
        self.url, self.body = url, {**body, "stream": True}
        self.status, self.lines = 0, list[str]()
        self.begun = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        try:
            post = httpx.stream("POST", f"{self.url}/v1/completions", json=self.body, timeout=120)
            with post as response:
                self.status = response.status_code
                for line in response.iter_lines():
                    self.lines += [line] if line else []
                    self.begun.set()
        except httpx.TransportError as error:
            self.lines.append(repr(error))
        finally:
            self.begun.set()

    def end(self, seconds: float) -> list[str]:
        """The lines, once the stream has ended."""
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "the stream does not end"
        return self.lines

    @property
    def error(self) -> dict[str, Any]:
        """The error event before the end of the stream."""
        assert self.lines[-1] == "data: [DONE]", self.lines[-3:]
        error: dict[str, Any] = json.loads(self.lines[-2].removeprefix("data: "))["error"]
        return error


def begin(server: ServerProcess, count: int, body: Mapping[str, Any] = ENDLESS) -> list[Stream]:
    """Streams that have begun."""
    streams = [Stream(server.url, body) for _ in range(count)]
    assert all(stream.begun.wait(60) and stream.lines for stream in streams)
    return streams


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.05)
