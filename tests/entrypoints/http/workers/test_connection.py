"""The server's end of the connection to a worker, with a test as the worker."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from echo.engine import EchoEngine
from echo.model import END_ID, make_model, served_echo
from echo.thread import ThreadEngine
from msgspec.structs import replace

from ostro.core.ipc.frames import Frames, frame
from ostro.core.messages.commands import (
    Abort,
    AdapterResult,
    GetStats,
    LoadAdapter,
    Outputs,
    ReadAdapter,
    UnloadModel,
)
from ostro.core.messages.outputs import Stats, TokenOutput
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.plugins.manager import PluginManager
from ostro.core.tokenizer import load_tokenizer
from ostro.entrypoints.http.app import make_app
from ostro.entrypoints.http.http_series import HttpSeries
from ostro.entrypoints.http.options import Options
from ostro.entrypoints.http.workers.connection import WorkerConnection
from ostro.entrypoints.http.workers.messages import (
    Enter,
    Entered,
    Forward,
    Forwarded,
    Leave,
    Refused,
    Series,
    Submit,
    Synced,
    to_worker,
)
from ostro.entrypoints.operations.access.admission import CLAIM, Admission
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.access.keys import Key, KeyRing, sha256_of
from ostro.entrypoints.operations.models.service import Service

BOSS = Key(name="boss", sha256=sha256_of("boss"), scopes=frozenset({"admin"}))
KEY = Key(name="ann", sha256=sha256_of("ann"), concurrent_requests=2, tokens_per_minute=20)
ENDLESS = Sampling(max_tokens=4000, ignore_eos=True)


class Peer:
    """The worker's end of a connection, its server, and the messages that have come."""

    def __init__(self, connection: WorkerConnection, echo: EchoEngine, end: socket.socket) -> None:
        self.connection, self.echo, self.end = connection, echo, end
        self.frames, self.messages = Frames(), list[Any]()
        self.published = 0

    async def send(self, *messages: msgspec.Struct) -> None:
        data = b"".join(map(frame, messages))
        await asyncio.get_running_loop().sock_sendall(self.end, data)

    async def get(self, kind: type) -> Any:
        """The next message of a kind; those before are dropped."""
        while True:
            while self.messages:
                if isinstance(message := self.messages.pop(0), kind):
                    return message
            data = await asyncio.get_running_loop().sock_recv(self.end, 1 << 16)
            assert data, "the server closes the connection"
            self.messages += map(to_worker.decode, self.frames.feed(data))

    async def ask(self, message: msgspec.Struct, kind: type) -> Any:
        await self.send(message)
        return await self.get(kind)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("m") / "echo")


@asynccontextmanager
async def connected(folder: Path, plugins: PluginManager, rows: int = 64) -> AsyncIterator[Peer]:
    echo = EchoEngine([END_ID])
    engine = ThreadEngine(lambda report: echo)
    engine.admission = Admission(rows)
    service, ring = Service(engine, "echo"), KeyRing([KEY, BOSS])
    app = make_app(service, plugins, Options(), ring=ring)
    info = await engine.start()
    service.models["echo"] = {"text": None}
    service.served["echo"] = served_echo(load_tokenizer(folder)).ready(info.first)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    async def publish() -> None:
        peer.published += 1

    peer = Peer(WorkerConnection(app, ring, publish), echo, theirs)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_unix_connection(lambda: peer.connection, sock=ours)
    try:
        yield peer
    finally:
        transport.abort()
        theirs.close()
        await engine.close()


Case = Callable[[Peer], Awaitable[None]]


@pytest.fixture
def run(folder: Path, plugins: PluginManager) -> Callable[..., None]:
    """Runs a case with a connected peer."""

    def run(case: Case, **options: Any) -> None:
        async def main() -> None:
            async with asyncio.timeout(20), connected(folder, plugins, **options) as peer:
                await case(peer)

        asyncio.run(main())

    return run


def submit(id: str = "a", *, claim: int | None = 0, **fields: Any) -> Submit:
    request = TokenRequest(id=id, tokens=[40, 41, 42], **fields)
    return Submit(request=request, claim=claim, key=KEY.digest, route="/v1/completions")


def enter(claim: int) -> Enter:
    return Enter(claim=claim, key=KEY.digest)


async def tokens_of(peer: Peer, id: str) -> list[int]:
    """The tokens of a request until it has finished."""
    found, finish = list[int](), None
    while finish is None:
        for output in (await peer.get(Outputs)).outputs:
            assert isinstance(output, TokenOutput)
            if output.id == id:
                found += output.tokens
                finish = output.finish
    return found


def test_a_request_is_relayed(run: Callable[..., None]) -> None:
    async def case(peer: Peer) -> None:
        entered = await peer.ask(enter(0), Entered)
        assert entered.headers["x-ratelimit-remaining-tokens"] == "20"
        await peer.send(submit(sampling=Sampling(max_tokens=5)))
        entered = await peer.get(Entered)
        assert entered.headers["x-ratelimit-remaining-tokens"] == "12", "3 and 5 are reserved"
        assert await tokens_of(peer, "a") == [40, 41, 42]
        [seen] = peer.echo.seen
        assert seen.salt, "the prefix cache is that of the key"
        await peer.send(Leave(0))
        assert (await peer.ask(enter(1), Entered)).headers["x-ratelimit-remaining-tokens"] == "14"

    run(case)


def test_limits_refuse(run: Callable[..., None]) -> None:
    async def case(peer: Peer) -> None:
        await peer.send(enter(0), enter(1), enter(2))
        refused = await peer.get(Refused)
        error = refused.error()
        assert refused.claim == 2 and (error.status, error.code) == (429, "rate_limit_exceeded")
        assert error.retry_after == 1.0 and "x-ratelimit-limit-tokens" in refused.headers
        await peer.send(Leave(2), Leave(0))  # a refused one takes no place
        assert (await peer.ask(enter(3), Entered)).claim == 3
        refused = await peer.ask(submit(claim=3, sampling=Sampling(n=18, max_tokens=1)), Refused)
        assert refused.id == "a" and refused.error().status == 413
        refused = await peer.ask(Enter(claim=4, key=b"of a key that is gone"), Refused)
        assert refused.claim == 4 and refused.error().status == 403

    run(case)


def test_the_queue_of_the_server_refuses(run: Callable[..., None]) -> None:
    async def case(peer: Peer) -> None:
        await peer.send(enter(0), enter(1))
        await peer.send(submit("a", sampling=Sampling(max_tokens=4000, ignore_eos=True)))
        await peer.get(Outputs)
        refused = await peer.ask(submit("b", claim=1, sampling=Sampling(max_tokens=1)), Refused)
        assert (refused.id, refused.kind) == ("b", "Overloaded")

    run(case, rows=1)


def test_a_model_that_is_not_loaded(run: Callable[..., None]) -> None:
    async def case(peer: Peer) -> None:
        refused = await peer.ask(submit(model="unloaded"), Refused)
        error = refused.error()
        assert (error.status, error.param) == (503, "model")

    run(case)


async def idle(peer: Peer) -> None:
    while peer.echo.live or peer.connection.service.engine.requests:
        await asyncio.sleep(0.001)
    quota = peer.connection.quotas.of("ann")
    assert quota.usage.running == 0 and not peer.connection.claims
    admission = peer.connection.service.engine.admission
    assert isinstance(admission, Admission) and (admission.rows, admission.tokens) == (0, 0)


def test_the_end_of_a_worker_ends_its_requests(run: Callable[..., None]) -> None:
    async def case(peer: Peer) -> None:
        await peer.send(enter(0), submit("a", sampling=ENDLESS), submit("b", sampling=ENDLESS))
        await peer.get(Outputs)
        peer.end.close()
        await peer.connection.gone.wait()
        await idle(peer)

    run(case)


def test_an_abort(run: Callable[..., None]) -> None:
    async def case(peer: Peer) -> None:
        two = Sampling(max_tokens=4000, ignore_eos=True, n=2)
        await peer.send(enter(0), submit("a", sampling=two))
        await peer.get(Outputs)
        await peer.send(Abort("a", 1))
        while True:
            outputs = (await peer.get(Outputs)).outputs
            if any((each.index, each.finish) == (1, "abort") for each in outputs):
                break
        await peer.send(Abort("a"), Leave(0))
        await peer.ask(GetStats(), Stats)
        await idle(peer)

    run(case)


def test_commands(run: Callable[..., None]) -> None:
    async def case(peer: Peer) -> None:
        load = LoadAdapter(id="1", name="sql", reference="/sql")
        result = await peer.ask(load, AdapterResult)
        assert result.id == "1" and [each.name for each in result.adapters] == ["sql"]
        refused = await peer.ask(ReadAdapter(id="2", name="none"), Refused)
        assert refused.id == "2" and refused.error().status == 404
        refused = await peer.ask(UnloadModel(id="3", model="m"), Refused)
        assert refused.id == "3" and "routes of models" in refused.message

    run(case)


def forward(method: str, path: str, key: Key = KEY, body: bytes = b"{}") -> Forward:
    return Forward(
        number=7,
        id="an-id",
        key=key.digest,
        seconds=None,
        method=method,
        path=path,
        query_string=b"",
        headers=[(b"content-type", b"application/json")],
        client=("192.0.2.1", 5),
        body=body,
    )


def test_forwarded_requests(run: Callable[..., None]) -> None:
    async def case(peer: Peer) -> None:
        response = await peer.ask(forward("GET", "/ready"), Forwarded)
        assert (response.number, response.status) == (7, 200) and b"ready" in response.body
        assert peer.published == 0
        response = await peer.ask(forward("POST", "/v1/models/unload"), Forwarded)
        assert response.status == 403 and peer.published == 1
        assert response.error == "admin_key_required"

    run(case)


def test_forwarded_requests_have_the_permissions_that_their_key_has_now(
    run: Callable[..., None],
) -> None:
    async def case(peer: Peer) -> None:
        request = forward("POST", "/v1/models/unload", BOSS, b'{"model": "x"}')
        response = await peer.ask(request, Forwarded)
        assert (response.status, response.error) == (400, "unsupported"), response.body
        peer.connection.ring.keys.clear()  # the keys file was read again
        response = await peer.ask(request, Forwarded)
        assert (response.status, response.error) == (403, "forbidden")

    run(case)


def test_forwarded_requests_are_not_counted_again(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[Caller] = []

    async def note_claim(*args: Any) -> None:
        own = CLAIM.get()
        assert own is not None
        own.releases.append(lambda: released.append(own.caller))

    monkeypatch.setattr(Service, "refresh_adapters", note_claim)

    async def case(peer: Peer) -> None:
        connection = peer.connection
        for _ in range(3):
            response = await peer.ask(forward("GET", "/v1/lora_adapters", BOSS), Forwarded)
            assert response.status == 200, response.body
        assert [caller.name for caller in released] == ["boss"] * 3
        assert not connection.app.state.metrics.requests.http.responses
        assert connection.quotas.of("boss", BOSS).usage.requests == 0

    run(case)


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_a_bug_in_a_forwarded_request(
    run: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[BaseException],
) -> None:
    def fail(*args: Any) -> None:
        raise error("a bug")

    monkeypatch.setattr(Service, "refresh_adapters", fail)

    async def case(peer: Peer) -> None:
        response = await peer.ask(forward("GET", "/v1/lora_adapters", BOSS), Forwarded)
        assert (response.status, response.error) == (500, "internal")
        assert b"a bug" not in response.body and b"an-id" in response.body

    run(case)
    assert "request an-id has failed" in caplog.text and error.__name__ in caplog.text


def test_the_deadline_of_a_forwarded_request(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait(*args: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Service, "refresh_adapters", wait)

    async def case(peer: Peer) -> None:
        request = replace(forward("GET", "/v1/lora_adapters", BOSS), seconds=0.01)
        response = await peer.ask(request, Forwarded)
        assert (response.status, response.error) == (504, "timeout")

    run(case)


def test_figures_and_views(run: Callable[..., None]) -> None:
    async def case(peer: Peer) -> None:
        connection = peer.connection
        connection.measure()
        await peer.send(Series(HttpSeries(running=3)), Synced(5))
        await connection.until(lambda: connection.version == 5)
        assert not connection.awaits_series and connection.series.running == 3
        never = asyncio.ensure_future(connection.until(lambda: False))
        await asyncio.sleep(0)
        assert not never.done()
        peer.end.close()
        await never
        assert connection.series.running == 0

    run(case)
