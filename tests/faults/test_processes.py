"""Faults of a running server: no request harms another, and no process is left behind."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from faults.process import ENDLESS, ServerProcess, begin, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
Launch = Callable[..., ServerProcess]
NOISE = ("nanobind", "leaked", "Traceback", "hidden-key")


@pytest.fixture
def launch() -> Iterator[Launch]:
    started: list[ServerProcess] = []

    def start(*options: str, files: int = 1024) -> ServerProcess:
        started.append(server := ServerProcess(*options, files=files))
        assert server.url, server.printed()
        return server

    yield start
    for server in started:
        server.kill()


def check_quiet(server: ServerProcess) -> None:
    """The log has no leak reports, no tracebacks and no keys."""
    printed = server.printed()
    assert not [word for word in NOISE if word in printed], printed


def test_a_killed_engine_is_replaced(launch: Launch) -> None:
    """Requests under way fail within 5 s; the adapters are known again, and counters go on."""
    server = launch()
    plain, adapted = server.text(), server.text(model="pirate")
    tokens = server.metric("vllm:prompt_tokens_total")
    adapters = sorted(each["id"] for each in server.http.get("/v1/models").json()["data"])
    streams, first = begin(server, 3), server.engine()
    with ThreadPoolExecutor(1) as thread:
        whole = thread.submit(server.complete, **ENDLESS)
        time.sleep(0.5)
        killed = time.monotonic()
        os.kill(first, signal.SIGKILL)
        assert whole.result(5).status_code == 503
    for stream in streams:
        stream.end(max(0.1, killed + 5 - time.monotonic()))
        assert stream.error["code"] == "engine_unavailable"
    assert server.http.get("/health").status_code == 200
    wait_for(lambda: server.http.get("/ready").status_code == 200, 120)
    assert server.engine() != first
    assert sorted(e["id"] for e in server.http.get("/v1/models").json()["data"]) == adapters
    assert (server.text(), server.text(model="pirate")) == (plain, adapted)
    assert server.metric("vllm:prompt_tokens_total") > tokens
    assert server.metric("ostro_engine_restarts_total") == 1
    assert server.end() == 0
    check_quiet(server)


def test_a_stopped_engine_is_reported(launch: Launch) -> None:
    """`/health` reports it, `/metrics` does not wait for it, and the streams go on after it."""
    server = launch("--hang-timeout", "2", "--no-restart")
    (stream,) = begin(server, 1)
    engine = server.engine()
    os.kill(engine, signal.SIGSTOP)
    try:
        seconds = []
        for _ in range(3):  # another process may delay one
            begun = time.monotonic()
            server.http.get("/metrics").raise_for_status()
            seconds.append(time.monotonic() - begun)
        assert min(seconds) < 1
        wait_for(lambda: server.http.get("/health").status_code == 503, 60)
        assert server.complete().status_code == 503
        assert server.metric("ostro_engine_silence_seconds") > 2
    finally:
        os.kill(engine, signal.SIGCONT)
    wait_for(lambda: server.http.get("/health").status_code == 200, 60)
    assert stream.end(120)[-1] == "data: [DONE]" and "error" not in stream.lines[-2]
    assert server.text()
    assert server.end() == 0
    check_quiet(server)


def test_a_signal_lets_ten_streams_finish(launch: Launch) -> None:
    server = launch("--drain-timeout", "120")
    children, streams = server.children(), begin(server, 10)
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: server.complete().status_code == 503, 60)
    for stream in streams:
        assert stream.end(120)[-1] == "data: [DONE]" and "error" not in stream.lines[-2]
        assert "length" in "".join(stream.lines[-3:])
    assert server.wait(children) == 0
    check_quiet(server)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_server(launch: Launch, number: signal.Signals) -> None:
    server = launch("--access-log", "--api-key", "hidden-key")
    headers = {"authorization": "Bearer hidden-key"}
    server.http.headers.update(headers)
    assert server.http.get("/v1/models?key=hidden-key").status_code == 400
    children = server.children()
    with ThreadPoolExecutor(1) as thread:
        whole = thread.submit(server.complete, **ENDLESS, n=32)  # ends long after both signals
        wait_for(lambda: server.http.get("/load").json()["running"] > 0, 60)
        server.process.send_signal(number)
        time.sleep(0.3)
        begun = time.monotonic()
        server.process.send_signal(number)
        assert server.wait(children) == 128 + number and time.monotonic() - begun < 10
        answer = whole.result(10)
    assert answer.status_code == 503 and "shutting down" in answer.text
    check_quiet(server)


def test_a_killed_server_leaves_no_process(launch: Launch) -> None:
    server = launch()
    children = server.children()
    begin(server, 1)
    server.process.kill()
    assert server.wait(children) == -signal.SIGKILL
    check_quiet(server)


def test_a_server_with_64_descriptors_serves_again(launch: Launch) -> None:
    """Connections that it cannot accept wait; it goes on once others have been closed."""
    server = launch(files=64)
    assert server.text()
    host, port = server.url.removeprefix("http://").split(":")
    clients = []
    try:
        for _ in range(100):
            clients.append(socket.create_connection((host, int(port)), 10))
        time.sleep(2)
    finally:
        for client in clients:
            client.close()
    assert server.process.poll() is None
    begun = time.monotonic()
    assert server.text() and time.monotonic() - begun < 10
    assert server.end() == 0


def test_a_full_disk_fails_only_what_is_stored(
    launch: Launch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("store")
    server = launch("--store", str(folder / "store"))

    def upload() -> int:
        content = {"file": ("a.txt", b"x" * 2_000_000), "purpose": (None, "user_data")}
        return server.http.post("/v1/files", files=content).status_code

    assert upload() == 200
    whole = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (100_000, whole[1]))
    assert upload() == 503
    assert server.text()
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, whole)
    assert upload() == 200
    assert server.end() == 0
    check_quiet(server)


def test_200_clients_that_give_up_leave_the_server_free(launch: Launch) -> None:
    server = launch()
    good = server.text()

    def give_up(_: int) -> None:
        with contextlib.suppress(httpx.TimeoutException):
            httpx.post(f"{server.url}/v1/completions", json=ENDLESS, timeout=0.5)

    with ThreadPoolExecutor(200) as threads:
        list(threads.map(give_up, range(200)))
    begun = time.monotonic()
    assert server.text() == good and time.monotonic() - begun < 30
    wait_for(lambda: server.metric("vllm:num_requests_running") == 0, 60)
    assert server.metric("vllm:kv_cache_usage_perc") == 0
    assert server.metric("vllm:num_requests_waiting") == 0
    assert server.end() == 0
    check_quiet(server)
