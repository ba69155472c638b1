"""`serve` as a user runs it: processes, signals, exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from echo.model import make_model

from ostro.core.errors import UsageError
from ostro.core.settings import Settings
from ostro.entrypoints.http.server import serve
from ostro.entrypoints.open import name_of
from ostro.entrypoints.operations.access.keys import sha256_of
from ostro.entrypoints.serve_config import ModelOptions

SCRIPT = """
import sys, json
from ostro.core.errors import OstroError
from ostro.core.settings import Settings
from ostro.entrypoints.http.server import serve
from ostro.entrypoints.serve_config import ModelOptions
settings, options = json.loads(sys.argv[1])
def heavy():
    return sorted({"torch", "transformers"} & set(sys.modules))
import atexit
atexit.register(lambda: print("heavy", heavy(), flush=True))
try:
    models = [ModelOptions(settings=Settings(**settings))]
    code = serve(models, **options, ready=lambda url: print("ready", url, flush=True))
except OstroError as error:
    print(f"ostro: {error}", file=sys.stderr)
    code = error.exit_code
sys.exit(code)
"""
LONG = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True}


class Process:
    """A server process; `url` once it is ready."""

    def __init__(self, model: Path, environment: dict[str, str], **options: Any) -> None:
        options = {"engine": "echo.engine:open_engine", "port": 0, **options}
        paths = os.pathsep.join(filter(None, sys.path))
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, json.dumps([{"reference": str(model)}, options])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, **environment},
        )
        self.url = ""

    def wait(self) -> None:
        """Wait until the server is ready, or has given up."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.url = line.split()[1] if line.startswith("ready") else ""

    def children(self) -> list[int]:
        """Process ids: the engine and the template renderer."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def engine(self) -> int:
        """The engine's process id."""
        for pid in self.children():
            if b"ostro.core.ipc.process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        raise AssertionError("there is no engine process")

    def end(self) -> tuple[int, str, str]:
        """Exit code and output, when the process ends by itself."""
        out, err = self.process.communicate(timeout=120)
        return self.process.returncode, out, err


Launch = Callable[..., Process]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "echo")


@pytest.fixture
def launch(model: Path) -> Iterator[Launch]:
    """Start servers; none is left behind."""
    started: list[Process] = []

    def begin(
        step: float = 0.0, loading: float = 0.0, fail: str = "", wait: bool = True, **options: Any
    ) -> Process:
        environment = {"ECHO_STEP": str(step), "ECHO_START": str(loading), "ECHO_FAIL": fail}
        started.append(server := Process(model, environment, **options))
        if wait:
            server.wait()
        return server

    yield begin
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def check_gone(pids: list[int]) -> None:
    """No process is left a moment later."""
    deadline = time.monotonic() + 120
    while any(map(alive, pids)):
        assert time.monotonic() < deadline, "a child outlives the server"
        time.sleep(0.05)


class Background:
    """A request under way in a thread: its status, and the lines that have come."""

    def __init__(self, url: str, **body: Any) -> None:
        self.url, self.body = f"{url}/v1/completions", body
        self.status = 0
        self.lines: list[str] = []
        self.begun = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        with httpx.stream("POST", self.url, json=self.body, timeout=120) as response:
            self.status = response.status_code
            for line in response.iter_lines():
                self.lines += [line] if line else []
                self.begun.set()

    def text(self) -> str:
        """The text of a stream's first choice."""
        events = [json.loads(line[6:]) for line in self.lines if line.startswith("data: {")]
        return "".join(c["text"] for event in events for c in event["choices"])


def begin(url: str, streams: int = 1, **body: Any) -> tuple[Background, list[Background]]:
    """A whole request and some streams, all under way."""
    whole = Background(url, **body)
    streamed = [Background(url, **body, stream=True) for _ in range(streams)]
    for request in streamed:
        assert request.begun.wait(60)
    time.sleep(0.2)
    return whole, streamed


def test_serve(launch: Launch) -> None:
    server = launch()
    assert httpx.get(f"{server.url}/ready").status_code == 200
    answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": "hi"}).json()
    assert answer["choices"][0]["text"] == "hi"
    chat = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": "hi"}).json()
    assert chat["choices"][0]["message"]["content"] == "user\nhi\nassistant\n"
    children = server.children()
    server.process.send_signal(signal.SIGTERM)
    code, out, err = server.end()
    assert code == 0 and "heavy []" in out, out
    assert re.search(r"echo at http://127.0.0.1:\d+/v1, ready in \d+\.\d s", err)
    assert "echo: sampling: temperature 0.8, top_k 40, top_p 0.95, min_p 0.05 (fallback)" in err
    assert "Traceback" not in err
    check_gone(children)


@pytest.mark.process
def test_access_log_has_no_query_strings(launch: Launch) -> None:
    server = launch(access_log=True)
    assert httpx.get(f"{server.url}/health?api_key=hidden").status_code == 200
    assert httpx.get(f"{server.url}/a%0Ab?hidden").status_code == 404
    server.process.send_signal(signal.SIGTERM)
    _, _, err = server.end()
    assert '"GET /health HTTP/1.1" 200' in err and '"GET /a%0Ab HTTP/1.1" 404' in err
    assert "hidden" not in err


@pytest.mark.process
def test_keys_are_read_again_on_sighup(launch: Launch, tmp_path: Path) -> None:
    """A malformed file changes nothing, and the log says why."""
    file = tmp_path / "keys.toml"
    file.touch(mode=0o600)

    def write(*names: str, rest: str = "") -> None:
        entries = [f'[[keys]]\nname = "{n}"\nsha256 = "{sha256_of(n)}"\n' for n in names]
        file.write_text("".join(entries) + rest)

    def status(name: str) -> int:
        headers = {"x-api-key": name}
        return httpx.get(f"{server.url}/v1/models", headers=headers).status_code

    def reload() -> None:
        before = len(lines)
        server.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 120
        while not any("--keys" in line for line in lines[before:]):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    write("alice", "bob")
    server = launch(keys=str(file), access_log=True)
    lines = list[str]()
    assert server.process.stderr is not None
    reader = threading.Thread(target=lines.extend, args=(server.process.stderr,))
    reader.start()
    assert (status("alice"), status("carol")) == (200, 401)
    write("alice", "carol")
    assert (status("bob"), status("carol")) == (200, 401)
    reload()
    assert [status(name) for name in ("alice", "bob", "carol")] == [200, 401, 200]
    for rest in ("priority = [", "priorty = 1"):
        write("dave", rest=rest)
        reload()
        assert [status(name) for name in ("alice", "carol", "dave")] == [200, 200, 401]
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 0
    reader.join(10)
    log = "".join(lines)
    assert "invalid TOML" in log and "unknown field 'priorty'; nearest: priority" in log
    assert log.count("the keys are unchanged") == 2
    assert re.search(r'127\.0\.0\.1:\d+ alice "GET /v1/models HTTP/1\.1" 200 \w+', log)
    assert re.search(r'127\.0\.0\.1:\d+ - "GET /v1/models HTTP/1\.1" 401 \w+', log)


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_drain(launch: Launch, number: signal.Signals) -> None:
    server = launch(step=0.02)
    whole, streams = begin(server.url, 3, prompt="abc", max_tokens=100, ignore_eos=True)
    server.process.send_signal(number)
    time.sleep(0.1)
    refused = httpx.post(f"{server.url}/v1/completions", json={"prompt": "late"})
    assert refused.status_code == 503 and refused.headers["retry-after"]
    assert httpx.get(f"{server.url}/ready").status_code == 503
    for request in (whole, *streams):
        request.thread.join()
        assert request.status == 200
    assert json.loads(whole.lines[0])["usage"]["completion_tokens"] == 100
    for request in streams:
        assert request.lines[-1] == "data: [DONE]" and len(request.text()) == 100
    assert server.end()[0] == 0


@pytest.mark.process
def test_drain_timeout(launch: Launch) -> None:
    server = launch(step=0.02, drain_timeout=0.3)
    whole, streams = begin(server.url, **LONG)
    start = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    code, _, err = server.end()
    assert code == 0 and time.monotonic() - start < 20
    assert "2 requests did not finish in time" in err
    for request in (whole, *streams):
        request.thread.join()
    assert whole.status == 503
    assert "incomplete" in streams[0].lines[-2] and streams[0].lines[-1] == "data: [DONE]"


@pytest.mark.process
def test_second_signal_ends_at_once(launch: Launch) -> None:
    server = launch(step=0.02)
    address = server.url.removeprefix("http://").split(":")
    body = json.dumps({**LONG, "stream": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection((address[0], int(address[1]))) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert client.recv(100)
        children = server.children()
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert server.process.poll() is None
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        code, _, err = server.end()
        assert code == 128 + signal.SIGTERM and "SIGKILL" not in err
        assert time.monotonic() - start < 20
    check_gone(children)


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_tells_clients_why_their_answers_end(
    launch: Launch, number: signal.Signals
) -> None:
    server = launch(step=0.02)
    whole, streams = begin(server.url, 3, **LONG)
    server.process.send_signal(number)
    time.sleep(0.3)
    server.process.send_signal(number)
    code, _, err = server.end()
    assert code == 128 + number and "Traceback" not in err, err
    for request in (whole, *streams):
        request.thread.join()
    assert whole.status == 503 and "shutting down" in whole.lines[0]
    for request in streams:
        assert "shutting down" in request.lines[-2] and request.lines[-1] == "data: [DONE]"


@pytest.mark.process
def test_two_signals_at_once_count_as_one(launch: Launch) -> None:
    """`timeout` sends a signal to the process and to its group."""
    server = launch(step=0.02)
    whole, streams = begin(server.url, prompt="abc", max_tokens=50, ignore_eos=True)
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        server.process.send_signal(number)
    for request in (whole, *streams):
        request.thread.join()
        assert request.status == 200
    assert streams[0].lines[-1] == "data: [DONE]" and len(streams[0].text()) == 50
    code, _, err = server.end()
    assert code == 0 and "SIGKILL" not in err, err


@pytest.mark.process
def test_signal_while_loading(launch: Launch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = launch(loading=60, port=port, wait=False)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 40
    while True:
        assert time.monotonic() < deadline
        with contextlib.suppress(httpx.TransportError):
            ready = httpx.get(f"{url}/ready").json()
            if ready["progress"]["what"] == "reading weights":
                break
        time.sleep(0.05)
    assert ready["status"] == "loading" and ready["progress"]["total"] == 2
    assert "models" not in ready
    assert httpx.get(f"{url}/health").status_code == 200
    assert httpx.post(f"{url}/v1/completions", json={"prompt": "a"}).status_code == 503
    start = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    code, _, err = server.end()
    assert code == 0 and time.monotonic() - start < 20, err


@pytest.mark.process
def test_engine_killed(launch: Launch) -> None:
    server = launch(step=0.02, restart=False)
    whole, streams = begin(server.url, **LONG)
    start = time.monotonic()
    os.kill(server.engine(), signal.SIGKILL)
    for request in (whole, *streams):
        request.thread.join()
    assert time.monotonic() - start < 20
    lines = streams[0].lines
    assert "engine_unavailable" in lines[-2] and lines[-1] == "data: [DONE]"
    assert whole.status == 503 and "engine_unavailable" in whole.lines[0]
    code, _, err = server.end()
    assert code == 1 and "SIGKILL" in err and "Traceback" not in err


@pytest.mark.process
def test_engine_is_restarted(launch: Launch) -> None:
    server = launch()
    first = server.engine()
    os.kill(first, signal.SIGKILL)
    deadline = time.monotonic() + 120
    # Until the server has noticed the end of the engine, it is ready.
    while first in server.children() or httpx.get(f"{server.url}/ready").status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert server.engine() != first
    answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": "again"}).json()
    assert answer["choices"][0]["text"] == "again"
    server.process.send_signal(signal.SIGTERM)
    assert server.end()[0] == 0


@pytest.mark.process
def test_an_engine_that_ends_while_it_restarts_is_restarted(launch: Launch) -> None:
    """Each end counts: after the fourth one within five minutes the server exits."""
    server = launch()
    killed = list[int]()
    deadline = time.monotonic() + 120
    while len(killed) < 4:
        assert time.monotonic() < deadline and server.process.poll() is None
        with contextlib.suppress(AssertionError):  # the next one has not begun
            if (engine := server.engine()) not in killed:
                os.kill(engine, signal.SIGKILL)
                killed.append(engine)
        time.sleep(0.01)
    code, _, err = server.end()
    assert code == 1 and err.count("restarting the engine") == 3 and "Traceback" not in err


@pytest.mark.process
def test_a_pause_of_all_processes_is_no_hang(launch: Launch) -> None:
    server = launch(step=0.01, hang_timeout=1.5)
    whole, streams = begin(server.url, prompt="abc", max_tokens=100, ignore_eos=True)
    engine = server.engine()
    os.kill(engine, signal.SIGSTOP)
    time.sleep(1.2)  # a heartbeat is unanswered
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(2)
    server.process.send_signal(signal.SIGCONT)
    time.sleep(0.1)
    os.kill(engine, signal.SIGCONT)
    for request in (whole, *streams):
        request.thread.join()
        assert request.status == 200
    assert streams[0].lines[-1] == "data: [DONE]" and len(streams[0].text()) == 100
    assert server.engine() == engine


@pytest.mark.process
def test_hung_engine_is_replaced(launch: Launch) -> None:
    server = launch(step=0.02, hang_timeout=0.5)
    whole, streams = begin(server.url, **LONG)
    first, begun = server.engine(), time.monotonic()
    os.kill(first, signal.SIGSTOP)
    try:
        for request in (whole, *streams):
            request.thread.join(60)
            assert not request.thread.is_alive()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(first, signal.SIGKILL)  # a stopped process would hold the test's pipes
    assert whole.status == 503 and "engine_unavailable" in whole.lines[0]
    assert "engine_unavailable" in streams[0].lines[-2] and streams[0].lines[-1] == "data: [DONE]"
    while httpx.get(f"{server.url}/ready").status_code != 200:
        assert time.monotonic() - begun < 120
        time.sleep(0.05)
    assert server.engine() != first and not alive(first)
    answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": "again"}).json()
    assert answer["choices"][0]["text"] == "again"
    server.process.send_signal(signal.SIGTERM)
    code, _, err = server.end()
    assert code == 0 and "did not respond" in err and "out of memory" not in err


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "code"), [("ConfigError", 4), ("InsufficientMemory", 9), ("PluginError", 7)]
)
def test_failing_start(launch: Launch, kind: str, code: int) -> None:
    server = launch(fail=kind)
    assert server.url == ""
    found, _, err = server.end()
    assert found == code and err.splitlines()[-1] == f"ostro: loading fails: {kind}"


def models_of(path: Path) -> list[ModelOptions]:
    return [ModelOptions(settings=Settings(reference=str(path)))]


def test_missing_model(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="nowhere") as raised:
        serve(models_of(tmp_path / "nowhere"), port=0, engine="echo.engine:open_engine")
    assert getattr(raised.value, "exit_code", 0) == 3


def test_port_in_use(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(UsageError, match="in use"):
            serve(models_of(model), port=taken.getsockname()[1])


def test_models_are_named_after_their_reference(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (tmp_path / "m.Q4_K.gguf").touch()
    assert name_of(Settings(reference=str(folder))) == "my-model"
    assert name_of(Settings(reference=str(tmp_path / "m.Q4_K.gguf"))) == "m.Q4_K"
    assert name_of(Settings(reference="org/name")) == "org/name"
    assert name_of(Settings(reference=str(folder), name="mine")) == "mine"
