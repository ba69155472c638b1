"""A server whose model follows a script, and a record of all its requests and responses."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from starlette.types import ASGIApp, Message, Receive, Scope, Send

sys.path.append(str(Path(__file__).parents[1]))

import echo.server
from echo.scripted import ScriptedEngine, common, text_of
from echo.server import Running, make_state
from echo.turns import READERS, Call, Turn, read_turn

from ostro.core.messages.requests import TokenRequest
from ostro.entrypoints.http.app import make_app

PROMPT = "make a file"
THOUGHT = "The user wants a file."
TITLE = "A file"
"""The answer to requests without the tool, such as those for a title."""
ANSWER = "The file is there."
MADE = "made-by-the-agent.txt"
"""The file that the call writes. Its name is in a prompt only after the call."""


@dataclass
class Exchange:
    """A request and its response."""

    method: str
    path: str
    sent: bytearray = field(default_factory=bytearray)
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    received: bytearray = field(default_factory=bytearray)

    @property
    def body(self) -> Any:
        """The JSON of the request; None if it is none."""
        try:
            return json.loads(self.sent)
        except ValueError:
            return None

    @property
    def ignored(self) -> str:
        return self.headers.get("x-ostro-ignored", "")

    @property
    def turn(self) -> Turn:
        """What the client reads of the answer; nothing on routes that generate no chat."""
        if self.status != 200 or self.path.partition("?")[0] not in READERS:
            return Turn()
        return read_turn(self.path, self.received.decode("utf-8", "replace"))

    def save(self, file: Path) -> None:
        """Write what was sent and received to a file."""
        answer = self.received.decode("utf-8", "replace")
        value = {"method": self.method, "path": self.path, "body": self.body}
        value |= {"status": self.status, "headers": self.headers, "answer": answer}
        file.write_text(json.dumps(value, indent=1, ensure_ascii=False))


class Recorder:
    """ASGI middleware that appends each exchange to a list when it begins."""

    def __init__(self, app: ASGIApp, exchanges: list[Exchange]) -> None:
        self.app, self.exchanges = app, exchanges

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        query = scope["query_string"].decode()
        exchange = Exchange(scope["method"], scope["path"] + (query and f"?{query}"))
        self.exchanges.append(exchange)

        async def keeping_receive() -> Message:
            message = await receive()
            exchange.sent += message.get("body", b"")
            return message

        async def keeping_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                pairs = message.get("headers", [])
                exchange.headers = {key.decode(): value.decode("latin-1") for key, value in pairs}
            exchange.received += message.get("body", b"")
            await send(message)

        await self.app(scope, keeping_receive, keeping_send)


@dataclass
class Rig:
    """A server of a scripted model, what it was asked over HTTP, and the requests to its engine."""

    running: Running
    template: str
    exchanges: list[Exchange]

    @property
    def engine(self) -> ScriptedEngine:
        assert isinstance(self.running.echo, ScriptedEngine)
        return self.running.echo

    @property
    def thinks(self) -> bool:
        return "<think>" in self.template

    def follow(self, call: Call) -> None:
        """Write a call in the first turn and a text in the next one, from now on."""
        self.exchanges.clear()
        self.engine.seen.clear()
        written = call.written(self.template)

        def script(prompt: str) -> str:
            if f'"name": "{call.tool}"' not in prompt and call.tool:
                return self.thought(prompt) + TITLE
            return self.thought(prompt) + (ANSWER if MADE in prompt else written)

        self.engine.script = script

    def thought(self, prompt: str) -> str:
        """The thought that precedes a text. The template may have begun or ended it."""
        if prompt.endswith("<think>\n"):
            return f"{THOUGHT}\n</think>\n\n"
        if not self.thinks or prompt.endswith("</think>\n\n"):
            return ""
        return f"<think>\n{THOUGHT}\n</think>\n\n"

    def turns(self, call: Call) -> list[TokenRequest]:
        """The first request that was answered with the call, and the first with its result."""
        written = call.written(self.template).encode()
        first = [
            request
            for request in self.engine.seen
            if written in bytes(token for token in self.engine.written[request.id] if token < 256)
        ]
        # Requests for a title contain the call, too, but not the prompt before it.
        second = [
            request
            for request in self.engine.seen
            if first and len(request.tokens) > len(first[0].tokens) and MADE in text_of(request)
        ]
        return [*first[:1], *second[:1]]

    def conversation(self, call: Call) -> list[Exchange]:
        """The first exchange with the call in its answer, and the first with its result."""
        for number, first in enumerate(self.exchanges):
            turn = first.turn
            if turn.name == call.tool if call.tool else turn.text.strip() == call.text.strip():
                rest = self.exchanges[number + 1 :]
                sent = [each for each in rest if MADE.encode() in each.sent]
                return [first, *[each for each in sent if len(each.sent) > len(first.sent)][:1]]
        return []

    def shared(self, call: Call) -> tuple[int, int] | None:
        """The tokens of the second turn that begin it as the first and its answer, and all."""
        turns = self.turns(call)
        if len(turns) < 2:
            return None
        first, second = turns
        past = (*first.tokens, *self.engine.written[first.id])
        return common(second.tokens, past), len(second.tokens)


@contextmanager
def scripted(template: str) -> Iterator[Rig]:
    """A server with a chat template, as `ostro serve` starts it: unknown fields are ignored."""
    exchanges: list[Exchange] = []

    def recorded(*args: Any, **options: Any) -> Any:
        app = make_app(*args, **options)
        app.add_middleware(Recorder, exchanges=exchanges)
        return app

    with tempfile.TemporaryDirectory() as folder, patch.object(echo.server, "make_app", recorded):
        servers = echo.server.start.__wrapped__(Folders(Path(folder)))  # type: ignore[attr-defined]
        start = next(servers)
        state = make_state("memory")
        running = start(
            template=template, engine_type=ScriptedEngine, strict_fields=False, state=state
        )
        try:
            yield Rig(running, template, exchanges)
        finally:
            next(servers, None)


@dataclass
class Folders:
    """Makes folders as `pytest.TempPathFactory` does."""

    root: Path

    def mktemp(self, name: str) -> Path:
        (self.root / name).mkdir()
        return self.root / name
