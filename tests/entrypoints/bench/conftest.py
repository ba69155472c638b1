"""Fixtures: a tiny model to measure, and an OpenAI server with predefined answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tiny.model import make_model

from ostro.entrypoints.cli import main


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a model folder."""
    return str(make_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run `ostro bench`. Return exit code, stdout and stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["bench", *words])
        return code, *capsys.readouterr()

    return run


@dataclass
class Fake:
    """A server of predefined streams. `events(body)` are the events of an answer."""

    events: Callable[[dict[str, Any]], list[Any]]
    status: int = 200
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    url: str = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        self.asked.append({**body, "path": handler.path})
        self.keys.append(handler.headers.get("Authorization"))
        handler.send_response(self.status)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        for event in self.events(body):
            text = event if isinstance(event, str) else json.dumps(event)
            handler.wfile.write(f"data: {text}\n\n".encode())
            handler.wfile.flush()


def tokens(body: dict[str, Any]) -> list[Any]:
    """The events of the requested number of tokens, the finish reason, and the usage."""
    words = len(body["prompt"].split())
    usage = {"prompt_tokens": words, "prompt_tokens_details": {"cached_tokens": words // 2}}
    pieces = [{"choices": [{"text": "x", "finish_reason": None}]}] * body["max_tokens"]
    end = {"choices": [{"text": "", "finish_reason": "length"}]}
    return [*pieces, end, {"choices": [], "usage": usage}, "[DONE]"]


@pytest.fixture
def serve() -> Iterator[Callable[..., Fake]]:
    """Start a server in a thread."""
    servers = []

    def start(events: Callable[[dict[str, Any]], list[Any]] = tokens, status: int = 200) -> Fake:
        fake = Fake(events, status)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                fake.answer(self)

            def log_message(self, *words: object) -> None:
                """Log nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        fake.url = f"http://127.0.0.1:{server.server_address[1]}"
        return fake

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
