"""The engine in a process of its own: start, work, and every way it can end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from echo.engine import EchoEngine
from echo.thread import ThreadEngine

from ostro.core import errors
from ostro.core.errors import (
    EngineDied,
    OstroError,
    Overloaded,
    PluginError,
    RequestError,
    UsageError,
)
from ostro.core.failure import described
from ostro.core.ipc import client
from ostro.core.ipc.client import AsyncEngine, check_output
from ostro.core.ipc.frames import Frames, frame, from_engine, to_engine
from ostro.core.ipc.process import EngineConnection, ProcessEngine
from ostro.core.messages import arrays
from ostro.core.messages.arrays import Array
from ostro.core.messages.commands import (
    Failed,
    FromEngine,
    LoadModel,
    ModelSpec,
    Outputs,
    Progress,
    RequantizeModel,
    StartEngine,
    UnloadModel,
)
from ostro.core.messages.outputs import JobOutput, TokenOutput
from ostro.core.messages.requests import AdapterRef, Sampling, TokenRequest
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.entrypoints.http.workers.messages import Refused

ECHO = "echo.engine:open_engine"
LONG = Sampling(max_tokens=4000, ignore_eos=True)
Test = Callable[[AsyncEngine], Awaitable[None]]


def make_process(**options: Any) -> ProcessEngine:
    return ProcessEngine(Settings(reference="nowhere"), **{"engine": ECHO, **options})


def make_thread() -> ThreadEngine:
    return ThreadEngine(lambda report: EchoEngine())


def run(engine: AsyncEngine, test: Test) -> None:
    """Start an engine, test it, close it."""

    async def main() -> None:
        try:
            await engine.start()
            await test(engine)
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def ask(id: str = "a", **fields: Any) -> TokenRequest:
    return TokenRequest(**{"id": id, "tokens": [5, 6, 7], **fields})


async def collect(engine: AsyncEngine, request: TokenRequest) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    async for output in engine.generate(request):
        found.setdefault(output.index, []).extend(output.tokens)
    return found


both = pytest.mark.parametrize("make", [make_process, make_thread])


@both
def test_requests_are_answered(make: Callable[[], AsyncEngine]) -> None:
    async def test(engine: AsyncEngine) -> None:
        assert engine.info is not None and engine.ready
        facts = engine.info.first
        assert (facts.vocab, facts.context, facts.eos_ids) == (300, 4096, [257])
        assert await collect(engine, ask()) == {0: [5, 6, 7]}
        three = ask(sampling=Sampling(n=3, max_tokens=2))
        assert await collect(engine, three) == {0: [5, 6], 1: [5, 6], 2: [5, 6]}
        many = [collect(engine, ask(f"r{i}", tokens=[i] * 4)) for i in range(50)]
        assert await asyncio.gather(*many) == [{0: [i] * 4} for i in range(50)]
        stats = await engine.stats()
        assert stats.prompt_tokens == 6 + 200 and stats.running == 0
        assert engine.requests == 0

    run(make(), test)


@both
def test_a_refused_request_fails_alone(make: Callable[[], AsyncEngine]) -> None:
    async def test(engine: AsyncEngine) -> None:
        with pytest.raises(RequestError, match="refuses") as refused:
            await collect(engine, ask(salt="refuse me"))
        assert refused.value.param == "cache_salt"
        assert await collect(engine, ask()) == {0: [5, 6, 7]}

    run(make(), test)


@both
def test_a_request_that_the_engine_cannot_take_in_fails_alone(
    make: Callable[[], AsyncEngine],
) -> None:
    async def test(engine: AsyncEngine) -> None:
        before = asyncio.ensure_future(collect(engine, ask("before", tokens=[5] * 2000)))
        await asyncio.sleep(0)
        with pytest.raises(OstroError, match="ZeroDivisionError: a bug of one request") as failed:
            await collect(engine, ask(salt="fail alone"))
        assert type(failed.value) is OstroError
        assert await before == {0: [5] * 2000}
        assert await collect(engine, ask()) == {0: [5, 6, 7]}

    run(make(), test)


@both
def test_closing_a_generator_aborts(make: Callable[[], AsyncEngine]) -> None:
    async def test(engine: AsyncEngine) -> None:
        outputs = engine.generate(ask(sampling=LONG))
        await anext(outputs)
        assert (await engine.stats()).running == 1
        await outputs.aclose()
        assert (await engine.stats()).running == 0

    run(make(), test)


@both
def test_models_are_loaded_and_unloaded_while_requests_run(make: Callable[[], AsyncEngine]) -> None:
    async def test(engine: AsyncEngine) -> None:
        assert engine.info is not None
        running = asyncio.ensure_future(collect(engine, ask("before", tokens=[5] * 2000)))
        load = LoadModel(model="other", spec=ModelSpec(Settings(reference="other")))
        assert list((await engine.change_models(load)).models) == ["default", "other"]
        assert list(engine.info.models) == ["default", "other"]
        requantize = RequantizeModel(model="other", quant="q4k")
        assert (await engine.change_models(requantize)).explain == ["all weights: q4k"]
        assert not running.done()
        with pytest.raises(UsageError, match="unknown format 'unknown'"):
            await engine.change_models(RequantizeModel(quant="unknown"))
        broken = LoadModel(model="bad", spec=ModelSpec(Settings(reference="broken")))
        with pytest.raises(errors.CheckpointError, match="is damaged"):
            await engine.change_models(broken)
        unload = UnloadModel(model="other")
        assert list((await engine.change_models(unload)).models) == ["default"]
        with pytest.raises(errors.NotFound, match="there is no model 'other'"):
            await engine.change_models(unload)
        assert list(engine.info.models) == ["default"]
        assert await running == {0: [5] * 2000}

    run(make(), test)


@both
def test_abort(make: Callable[[], AsyncEngine]) -> None:
    async def test(engine: AsyncEngine) -> None:
        outputs = engine.generate(ask(sampling=LONG))
        await anext(outputs)
        engine.abort("nobody")
        engine.abort("a")
        with pytest.raises(Overloaded, match="aborted"):
            async for _ in outputs:
                pass
        assert (await engine.stats()).running == 0

    run(make(), test)


@both
def test_abort_of_one_choice(make: Callable[[], AsyncEngine]) -> None:
    async def test(engine: AsyncEngine) -> None:
        rules = Sampling(n=3, max_tokens=1000, ignore_eos=True)
        counts: dict[int, int] = {}
        finish: dict[int, str] = {}
        async for output in engine.generate(ask(sampling=rules)):
            if not counts:
                engine.abort("a", 1)
                engine.abort("nobody", 1)
            counts[output.index] = counts.get(output.index, 0) + len(output.tokens)
            if output.finish:
                finish[output.index] = output.finish
        assert finish == {0: "length", 1: "abort", 2: "length"}
        assert counts[0] == counts[2] == 1000 > counts[1]
        stats = await engine.stats()
        assert stats.running == 0 and stats.generated_tokens < 3000

    run(make(), test)


@both
def test_drain(make: Callable[[], AsyncEngine]) -> None:
    async def test(engine: AsyncEngine) -> None:
        work = asyncio.ensure_future(collect(engine, ask(tokens=[5] * 2000)))
        await asyncio.sleep(0)
        assert not await engine.drain(0)
        with pytest.raises(Overloaded, match="shutting down"):
            await collect(engine, ask("b"))
        assert await engine.drain(60)
        assert await work == {0: [5] * 2000}

    run(make(), test)


@both
def test_close_fails_what_is_under_way(make: Callable[[], AsyncEngine]) -> None:
    async def test(engine: AsyncEngine) -> None:
        outputs = engine.generate(ask(sampling=LONG))
        await anext(outputs)
        await engine.close()
        with pytest.raises(EngineDied, match="closed"):
            async for _ in outputs:
                pass

    run(make(), test)


def test_a_hung_child_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(client, "HEARTBEAT", 0.01)

    async def until(hung: bool) -> None:
        while engine.hung is not hung:
            await asyncio.sleep(0.01)
            if hung:
                now[0] += 100  # repeatedly: a child that is not stopped yet answers once more

    async def test(engine: AsyncEngine) -> None:
        assert isinstance(engine, ProcessEngine) and engine.pid
        assert await collect(engine, ask()) == {0: [5, 6, 7]}
        os.kill(engine.pid, signal.SIGSTOP)
        await until(True)
        assert not engine.ready and engine.silence > engine.patience
        with pytest.raises(Overloaded, match="has not responded"):
            await collect(engine, ask())
        os.kill(engine.pid, signal.SIGCONT)
        await until(False)
        assert engine.ready and await collect(engine, ask()) == {0: [5, 6, 7]}

    engine = make_process()
    run(engine, test)


def test_not_before_it_is_ready() -> None:
    async def main() -> None:
        with pytest.raises(Overloaded, match="loading"):
            await collect(make_thread(), ask())

    asyncio.run(main())


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "kind", ["ConfigError", "InsufficientMemory", "CheckpointError", "PickleRefused", "Unsupported"]
)
def test_the_same_error_is_raised_here(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO_FAIL", kind)
    with pytest.raises(OstroError, match=f"loading fails: {kind}") as raised:
        run(make_process(), collect_nothing)
    assert type(raised.value) is getattr(errors, kind)


def test_a_bug_while_loading(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ECHO_FAIL", "NoSuchKind")
    with pytest.raises(EngineDied, match="ValueError: loading fails"):
        run(make_process(), collect_nothing)
    assert "Traceback" in capfd.readouterr().err


async def collect_nothing(engine: AsyncEngine) -> None:
    raise AssertionError("the engine must not have started")


def test_progress_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, seen = make_process(), list[tuple[Progress, bool]]()
    deliver = engine._deliver

    def note(message: FromEngine) -> None:
        deliver(message)
        seen.append((engine.progress, engine.ready))

    monkeypatch.setattr(engine, "_deliver", note)

    async def test(engine: AsyncEngine) -> None:
        (first, ready), *_ = seen
        assert (first.what, first.done, first.total) == ("reading weights", 1, 2)
        assert not ready and engine.ready

    run(engine, test)


def test_registries_must_agree(tmp_path: Path) -> None:
    plugins = PluginManager()
    plugins.load()

    async def test(engine: AsyncEngine) -> None:
        assert engine.info is not None and engine.info.digest == plugins.digest()

    run(make_process(registry=plugins.registry()), test)
    theirs = {**plugins.registry(), "ostro-arch-x": "wheel 1.0"}
    with pytest.raises(PluginError, match="ostro-arch-x"):
        run(make_process(registry=theirs), collect_nothing)


def test_plugin_paths_cross(tmp_path: Path) -> None:
    plugin = tmp_path / "outside.py"
    plugin.write_text(
        "from ostro.core.hooks import hookimpl\n@hookimpl\ndef ostro_caches():\n    return []\n"
    )
    plugins = PluginManager()
    plugins.load(paths=[plugin])

    async def test(engine: AsyncEngine) -> None:
        assert engine.info is not None and engine.info.digest == plugins.digest()

    run(make_process(registry=plugins.registry(), plugin_paths=[str(plugin)]), test)


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


@pytest.mark.sample(1)
@pytest.mark.parametrize("busy", [False, True])
def test_the_child_dies(busy: bool) -> None:
    async def test(engine: AsyncEngine) -> None:
        assert isinstance(engine, ProcessEngine) and engine.pid
        outputs = engine.generate(ask(sampling=LONG))
        if busy:
            await anext(outputs)
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineDied, match="SIGKILL"):
            async for _ in outputs:
                pass
        await engine.wait_gone()
        assert not engine.ready and engine.requests == 0
        with pytest.raises(EngineDied):
            await engine.stats()
        await engine.start()
        assert await collect(engine, ask()) == {0: [5, 6, 7]}

    run(make_process(), test)


def test_a_bug_ends_the_child() -> None:
    async def test(engine: AsyncEngine) -> None:
        with pytest.raises(EngineDied, match="a bug in the engine"):
            await collect(engine, ask(salt="crash"))
        await engine.wait_gone()

    run(make_process(), test)


def test_signals_to_the_child_are_left_to_the_parent() -> None:
    async def test(engine: AsyncEngine) -> None:
        assert isinstance(engine, ProcessEngine) and engine.pid
        os.kill(engine.pid, signal.SIGTERM)
        os.kill(engine.pid, signal.SIGINT)
        assert await collect(engine, ask()) == {0: [5, 6, 7]}

    run(make_process(), test)


def test_the_child_exits_with_no_frozen_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton 3.9 prints a report of leaks at exit about objects that are frozen."""
    monkeypatch.setenv("ECHO_FROZEN", str(tmp_path / "frozen"))

    async def test(engine: AsyncEngine) -> None:
        assert await collect(engine, ask()) == {0: [5, 6, 7]}

    run(make_process(), test)
    assert (tmp_path / "frozen").read_text() == "0"


@pytest.mark.parametrize(
    "state",
    [
        "idle",
        pytest.param("loading", marks=pytest.mark.process),
        pytest.param("busy", marks=pytest.mark.process),
    ],
)
def test_the_parent_dies(state: str, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import asyncio, sys\n"
        "from ostro.core.messages.commands import ModelSpec\n"
        "from ostro.core.ipc.process import ProcessEngine\n"
        "from ostro.core.messages.requests import Sampling, TokenRequest\n"
        "from ostro.core.settings import Settings\n"
        "async def main():\n"
        f"    engine = ProcessEngine(Settings(reference='x'), engine={ECHO!r})\n"
        "    engine.spawn()\n"
        "    print(engine.pid, flush=True)\n"
        "    await engine.load([ModelSpec(engine.settings)])\n"
        f"    if {state!r} == 'busy':\n"
        "        rules = Sampling(max_tokens=10**6, ignore_eos=True)\n"
        "        request = TokenRequest(id='a', tokens=[1], sampling=rules)\n"
        "        await anext(engine.generate(request))\n"
        "    print('up', flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if state == "loading":
        environment["ECHO_START"] = "60"
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, env=environment, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        if state != "loading":
            assert parent.stdout.readline() == "up\n"
        else:
            time.sleep(1)
        assert not gone(child)
        parent.kill()
    begin = time.monotonic()
    while not gone(child):
        assert time.monotonic() - begin < 60, "the child outlives its parent"
        time.sleep(0.05)


def test_no_other_process_inherits_the_socket() -> None:
    """The child's descriptor is closed in what it starts, or its death would go unnoticed."""

    async def test(engine: AsyncEngine) -> None:
        assert isinstance(engine, ProcessEngine) and engine.pid
        links = [os.readlink(path) for path in Path(f"/proc/{engine.pid}/fd").iterdir()]
        assert sum(link.startswith("socket:") for link in links) == 1

    run(make_process(), test)


# The wire


def test_messages_survive_any_cut() -> None:
    hello = StartEngine(
        settings=Settings(threads=2),
        models=[ModelSpec(Settings(reference="é", allow_config=("a",)), [1])],
        plugin_paths=["p"],
        registry={"a": "b"},
    )
    request = ask(
        sampling=Sampling(logit_bias={3: 1.5}, stop=("x",)),
        adapters=(AdapterRef(name="g", scale=0.5),),
    )
    data = frame(hello) + frame(request)
    for step in (1, 3, 7, len(data)):
        frames, bodies = Frames(), []
        for start in range(0, len(data), step):
            bodies += frames.feed(data[start : start + step])
        first, second = map(to_engine.decode, bodies)
        assert isinstance(first, StartEngine) and first.models[0].settings.reference == "é"
        assert second == request


def test_malformed_messages_end_the_connection() -> None:
    with pytest.raises(EngineDied, match="the limit is"):
        Frames().feed(b"\xff\xff\xff\xff")
    for body in (b"", b"\x80", msgspec.msgpack.encode({"type": "Quit"}), frame(Outputs([]))[4:]):
        with pytest.raises(msgspec.MsgspecError):
            to_engine.decode(body)


def test_the_numbers_of_a_long_prompt_cross() -> None:
    error = errors.ContextLengthExceeded.of(64, 65, counted=False, advice="x", param="input")
    output = TokenOutput(id="a", finish="error", **described(error))
    refused = Refused.of(error, id="a")
    for kind, message in ((Failed, Failed.of(error)), (TokenOutput, output), (Refused, refused)):
        received = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=kind)
        if isinstance(received, TokenOutput):
            with pytest.raises(errors.ContextLengthExceeded) as raised:
                check_output(received)
            found: Any = raised.value
        else:
            found = received.error()
        assert type(found) is type(error) and str(found) == str(error)
        assert vars(found).items() >= vars(error).items()


def test_errors_cross() -> None:
    error = Failed.of(errors.ContextLengthExceeded("too long", param="prompt")).error()
    assert type(error) is errors.ContextLengthExceeded
    assert (str(error), error.param) == ("too long", "prompt")
    assert type(Failed(kind="nearest", message="m").error()) is OstroError
    assert "KeyError" in str(Failed.of(KeyError("k")).error())


def test_outputs_without_a_request_are_dropped() -> None:
    engine = make_thread()
    engine._deliver(Outputs([TokenOutput(id="gone", tokens=[1])]))
    engine._deliver(Failed(kind="RequestError", message="m", id="gone"))
    assert engine.fault is None


def test_full_shared_memory_does_not_end_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that shared memory cannot store is sent through the socket."""
    monkeypatch.setattr(arrays, "SHARED", tmp_path / "full")
    rows = np.arange(60_000, dtype=np.float32).reshape(3, -1)
    output = JobOutput(id="a", arrays={"rows": Array.of(rows)}, finish="stop")
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    with ours, theirs:
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        EngineConnection(theirs).send(Outputs([output]))
        frames, bodies = Frames(), list[bytes]()
        while not bodies:
            bodies += frames.feed(ours.recv(1 << 20))
    received = from_engine.decode(bodies[0])
    assert isinstance(received, Outputs)
    assert isinstance(received.outputs[0], JobOutput)
    assert np.array_equal(received.outputs[0].arrays["rows"].numpy(), rows)
