"""Fixtures: a server on a real socket in one thread, with an echo engine in another."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from fastapi import FastAPI

from echo.engine import EchoEngine
from echo.model import END_ID, make_model, served_echo
from echo.thread import ThreadEngine
from ostro.core.chat import ChatTemplate
from ostro.core.messages.outputs import TokenOutput
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.core.tokenizer import load_tokenizer
from ostro.entrypoints.http.app import make_app
from ostro.entrypoints.http.listener import listen, url_of
from ostro.entrypoints.http.options import Options
from ostro.entrypoints.http.web import Web
from ostro.entrypoints.operations.access.admission import Admission
from ostro.entrypoints.operations.access.keys import KeyRing
from ostro.entrypoints.operations.documents.state import State, open_state
from ostro.entrypoints.operations.models.service import Service

HOST = "a"
"""The Host header of requests that tests write themselves."""
LOGPROBS: Any = ["message.output_text.logprobs"]
"""The value of `include` that asks for logprobs of a response."""
PATIENCE = 120.0
"""Seconds after which a test gives up. No outcome depends on them unless the server hangs."""


class MovableLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock a test moves forward. What is due at the new time then happens."""

    offset = 0.0

    def time(self) -> float:
        return super().time() + self.offset

    def advance(self, seconds: float) -> None:
        """Move the clock from another thread."""
        moved = threading.Event()

        def move() -> None:
            self.offset += seconds
            moved.set()

        self.call_soon_threadsafe(move)
        assert moved.wait(PATIENCE)


def wait_until(condition: Callable[[], object], what: str = "the condition does not hold") -> None:
    """Wait until a condition holds. what: the message of the error if it never does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


@dataclass
class Running:
    """A server under test.

    `echo` is its engine, `service` its state, `app` its application, `loop` its event loop.
    """

    url: str
    echo: EchoEngine
    service: Service
    plugins: PluginManager
    app: FastAPI
    loop: MovableLoop
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE)

    @contextlib.contextmanager
    def paused(self, steps: int = 0) -> Iterator[threading.Event]:
        """Stop the engine within the block, after a number of steps. Yields whether it stands."""
        release, stands, step = threading.Event(), threading.Event(), self.echo.step

        def hold() -> list[TokenOutput]:
            nonlocal steps
            if steps == 0:
                stands.set()
                release.wait()
            else:
                steps -= 1
            return step()

        self.echo.step = hold  # type: ignore[method-assign]
        try:
            yield stands
        finally:
            self.echo.step = step  # type: ignore[method-assign]
            release.set()

    def post(self, path: str, **body: Any) -> httpx.Response:
        """Post JSON."""
        return self.http.post(path, json=body)

    def chat(self, text: str = "hi", **body: Any) -> httpx.Response:
        """Request a chat completion for the message `text`, or for `messages` if given."""
        return self.post("/v1/chat/completions", **{"messages": [chat_message(text)], **body})

    def complete(self, prompt: Any = "hello", **body: Any) -> httpx.Response:
        """Request a text completion."""
        return self.post("/v1/completions", prompt=prompt, **body)

    def talk(self, data: bytes, pieces: int = 1) -> bytes:
        """Send bytes on a new connection, and read until the server closes it."""
        answer, size = b"", -(-len(data) // pieces)
        with self.connect() as client:
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                for start in range(0, len(data), size):
                    time.sleep(0.002 if start else 0)
                    client.sendall(data[start : start + size])
                while part := client.recv(1 << 16):
                    answer += part
        return answer

    def connect(self) -> socket.socket:
        """Open a connection to the server."""
        address = urlsplit(self.url)
        return socket.create_connection((address.hostname, address.port), timeout=PATIENCE)

    def events(self, path: str, **body: Any) -> list[Any]:
        """The parsed events of a stream, without comments."""
        events = []
        with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                if line.startswith("data: "):
                    events.append(line.removeprefix("data: "))
        assert events.pop() == "[DONE]"
        return [json.loads(event) for event in events]


def chat_message(text: str, role: str = "user") -> dict[str, Any]:
    """A chat message."""
    return {"role": role, "content": text}


def user(content: Any) -> dict[str, Any]:
    """A message of the user, with a text or parts."""
    return {"role": "user", "content": content}


def make_state(location: str) -> State:
    """A store with the built-in plugins; documents stay for a day."""
    plugins = PluginManager()
    plugins.load()
    return open_state(location, 86400.0, plugins)


def make_client(server: Running, key: str = "none") -> openai.OpenAI:
    """OpenAI's client of a server, which validates answers strictly."""
    return openai.OpenAI(
        base_url=f"{server.url}/v1", api_key=key, max_retries=0, _strict_response_validation=True
    )


Start = Callable[..., Running]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start servers.

    `options` are those of `make_app`, `limit` that of sequences; `send_buffer` is in bytes. `keys`
    and `admin_key` are in plain text. With a `template` the outputs of chats are parsed. `plugin`
    is one besides the built-in ones, `engine_type` the class of the engine. Unknown fields are
    errors, unless `strict_fields` is false.
    """
    folder = make_model(tmp_path_factory.mktemp("models") / "echo")
    ends: list[Callable[[], None]] = []

    def begin(
        *,
        limit: int = 64,
        loading: bool = False,
        send_buffer: int = 0,
        keys: Sequence[str] = (),
        admin_key: str | None = None,
        template: str | None = None,
        plugin: object | None = None,
        engine_type: type[EchoEngine] = EchoEngine,
        **options: Any,
    ) -> Running:
        up, servers, failed = threading.Event(), [], []
        stop: dict[str, Callable[[], None]] = {}

        async def main() -> None:
            listener = listen("127.0.0.1", 0, False)
            if send_buffer:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
            echo, plugins = engine_type([END_ID]), PluginManager()
            plugins.load()
            if plugin is not None:
                plugins.register(plugin, "tested")
            release = threading.Event()
            if not loading:
                release.set()

            def build(report: Any) -> EchoEngine:
                release.wait()
                return echo

            engine = ThreadEngine(build)
            engine.admission = Admission(limit)
            service = Service(engine, "echo")
            ring = options.pop("ring", None) or KeyRing.of(keys, admin_key)
            names = {each.name for each in fields(Options)} & options.keys()
            given = {name: options.pop(name) for name in names}
            stated = Options(**{"allow_hosts": [HOST], "strict_fields": True, **given})
            app = make_app(service, plugins, stated, ring=ring, **options)
            await app.state.operations.documents.start()
            web = Web.of(app)
            # A client whose idle connection is closed while it sends a request gets no response.
            web.config.timeout_keep_alive = 10**9
            serving = asyncio.ensure_future(web.serve(sockets=[listener]))
            starting = asyncio.ensure_future(engine.start())
            if not loading:
                info = await starting
                tokenizer = load_tokenizer(folder)
                outputs: dict[str, Any] = {}
                if template is not None:
                    outputs["template"] = ChatTemplate(template, tokens={})
                    outputs["parsers"] = plugins.collect("parsers")
                model = served_echo(tokenizer, **outputs).ready(info.first)
                text = resolve(plugins.get("pipelines", "text").pipeline)
                service.models["echo"] = {"text": text(model, engine)}
                service.served["echo"] = model
                app.state.operations.documents.run_jobs()
            while not web.started:
                await asyncio.sleep(0.01)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, MovableLoop)
            servers.append(Running(url_of(listener), echo, service, plugins, app, loop))

            def end() -> None:
                release.set()
                web.stop()

            stop["now"] = lambda: loop.call_soon_threadsafe(end)
            up.set()
            await serving
            await app.state.operations.documents.close()
            await starting
            await engine.close()
            listener.close()

        def run() -> None:
            try:
                with asyncio.Runner(loop_factory=MovableLoop) as runner:
                    runner.run(main())
            except BaseException as error:
                failed.append(error)
                up.set()

        thread = threading.Thread(target=run)
        thread.start()
        assert up.wait(PATIENCE)
        if failed:
            raise failed[0]

        def end() -> None:
            servers[0].http.close()
            stop["now"]()
            thread.join(PATIENCE)
            if failed:
                raise failed[0]

        ends.append(end)
        return servers[0]

    yield begin
    for end in ends:
        end()


@pytest.fixture(scope="module")
def server(start: Start) -> Running:
    """A server without an API key."""
    return start()
