"""CPU time of the API processes per streamed token, with the echo engine in its own process.

    PYTHONPATH=src:tests python -m echo.cpu --streams 64 --tokens 400

With `--workers N` the times of the server process and of its workers are printed apart. A client
that reads late gets several tokens in one event, so there are fewer events than tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from echo.model import make_model

SERVER = """
import sys
from ostro.core.settings import Settings
from ostro.entrypoints.http.server import serve
from ostro.entrypoints.serve_config import ModelOptions
ready = lambda url: print(url, flush=True)
models = [ModelOptions(settings=Settings(reference=sys.argv[1]))]
workers, engine = int(sys.argv[2]), "echo.engine:open_engine"
serve(models, port=0, ready=ready, engine=engine, workers=workers, store="none")
"""


def cpu_seconds(pid: int) -> tuple[float, float]:
    """User and system time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / ticks, int(fields[12]) / ticks


def workers_of(pid: int) -> list[int]:
    """The process ids of a server's workers."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    lines = {int(each): Path(f"/proc/{each}/cmdline").read_bytes() for each in children}
    return [each for each, line in lines.items() if b"workers.worker" in line]


def spent(pids: Sequence[int]) -> tuple[float, float]:
    """User and system time of several processes in microseconds."""
    times = [cpu_seconds(pid) for pid in pids]
    return 1e6 * sum(user for user, _ in times), 1e6 * sum(system for _, system in times)


def stream(url: str, streams: int, tokens: int) -> int:
    """Read this number of streams to their ends. Return the number of events with text."""
    address = urlsplit(url)
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": "abcdefgh" * 50}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
    )
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    selector, events = selectors.DefaultSelector(), 0
    for _ in range(streams):
        client = socket.create_connection((address.hostname, address.port))
        client.sendall((head + body).encode())
        selector.register(client, selectors.EVENT_READ)
    while selector.get_map():
        for key, _ in selector.select(60):
            client = key.fileobj
            assert isinstance(client, socket.socket)
            data = client.recv(1 << 16)
            events += data.count(b'"content":"')
            if not data:
                selector.unregister(client)
                client.close()
    return events


def main() -> int:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--step", default="0.02", help="seconds of an engine step")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder) / "echo")
        environment = {**os.environ, "ECHO_STEP": args.step}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        with subprocess.Popen(
            [sys.executable, "-c", SERVER, str(model), str(args.workers)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as server:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            stream(url, args.streams, 20)
            found = []
            groups = {"server": [server.pid], "workers": workers_of(server.pid)}
            for _ in range(args.runs):
                before = {name: spent(pids) for name, pids in groups.items()}
                events, tokens = stream(url, args.streams, args.tokens), args.streams * args.tokens
                shown, total = [], 0.0
                for name, pids in groups.items():
                    user, system = (n - b for n, b in zip(spent(pids), before[name], strict=True))
                    shown.append(
                        f"{name} {(user + system) / tokens:.1f} (user {user / tokens:.1f})"
                    )
                    total += (user + system) / tokens
                found.append(total)
                print(
                    f"{', '.join(shown)}, {total:.1f} µs per token; {events} events of {tokens} "
                    "tokens",
                    flush=True,
                )
            server.terminate()
    print(f"median: {statistics.median(found):.1f} µs of CPU per token")
    return 0


if __name__ == "__main__":
    sys.exit(main())
