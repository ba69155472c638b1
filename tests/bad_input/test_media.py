"""Media that are none, lie or harm, over HTTP: each is refused clearly, and the next is answered.

The engine runs in a process of its own, as does what prepares media.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import socket
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tiny import inputs
from tiny.inputs import hostile, leaked_shared_memory
from tiny.model import make_model
from tiny.pictures import address, asked, picture, saved, shown
from tiny.server import RunningServer, serving
from tiny.vision import IDS, make_vision

from ostro.core.errors import ConfigError
from ostro.core.media.worker import SECONDS, MediaWorker
from ostro.core.settings import Settings

CHAT = "/v1/chat/completions"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
WIDE, LARGE = picture(1), picture(2, 64, 64)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A model that sees, whose inputs harm where an image says so; one of text; one without its
    preprocessor's file.
    """
    root = tmp_path_factory.mktemp("models")
    vision = make_vision(root / "vision")
    bare = Path(shutil.copytree(vision, root / "bare"))
    (bare / "preprocessor_config.json").unlink()
    also = [str(make_model(root / "text")), str(bare)]
    asked_for, harm = Settings(reference=str(vision), dtype="float32"), [inputs.__file__]
    with serving(asked_for, also=also, plugin_paths=harm) as running:
        reply_of(ask(running, shown(WIDE), "hello"))  # from now on media have a process
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(server: RunningServer) -> Iterator[None]:
    """After every test no block is held, no request is under way, and shared memory is empty."""
    yield
    begun = time.monotonic()
    while (stats := server.stats()).running or stats.waiting or stats.blocks_used:
        assert time.monotonic() - begun < 60, stats
        time.sleep(0.02)
    while server.server.engine.requests:
        assert time.monotonic() - begun < 60, "requests without a client are still running"
        time.sleep(0.02)
    gc.collect()
    assert leaked_shared_memory() == []


def ask(server: RunningServer, *parts: Any, **more: Any) -> httpx.Response:
    return server.post(CHAT, messages=[asked(*parts)], **{**GREEDY, **more})


def reply_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


@pytest.fixture(scope="module")
def expected(server: RunningServer) -> str:
    """The reply to a valid request."""
    return reply_of(ask(server, shown(LARGE), "hello"))


def refused(response: httpx.Response, status: int, reason: str, param: str | None) -> None:
    error = response.json()["error"]
    assert response.status_code == status and reason in error["message"], response.text
    assert error["param"] == param and "Traceback" not in response.text


def bomb(width: int, height: int) -> bytes:
    """A small PNG file with many pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        check = zlib.crc32(kind + body)
        return len(body).to_bytes(4, "big") + kind + body + check.to_bytes(4, "big")

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 0, 0, 0, 0])
    rows = zlib.compress(bytes((width + 1) * min(height, 2000)), 1)
    head = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    return head + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def image(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": address(data)}}


def video(data: bytes) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": address(data, "video/mp4")}}


def at(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


CONTENT = "messages[0].content"
BAD: dict[str, tuple[list[Any], int, str, str | None]] = {
    "bomb": ([image(bomb(60_000, 60_000))], 400, "pixels", "messages"),
    "large": ([image(bomb(9_000, 9_000))], 400, "million pixels", "messages"),
    "slim": ([image(saved(picture(0, 900, 2)))], 400, "too narrow", "messages"),
    "truncated": ([image(saved(LARGE)[:500])], 400, "cannot be read", "messages"),
    "empty": ([at("data:image/png;base64,")], 400, "cannot be read", "messages"),
    "text": ([at("data:text/plain,hello")], 400, "cannot be read", "messages"),
    "svg": ([image(b"<svg xmlns='http://www.w3.org/2000/svg'/>")], 400, "PNG, JPEG", "messages"),
    "not-base64": ([at("data:image/png;base64,@@@")], 400, "not base64", "messages"),
    "no-comma": ([at("data:image/png;base64")], 400, "comma", "messages"),
    "file": ([at("file:///etc/passwd")], 400, "data: or http(s):", "messages"),
    "relative": ([at("a.png")], 400, "data: or http(s):", "messages"),
    "no-address": ([at("")], 400, "data: or http(s):", "messages"),
    "loopback": ([at("http://127.0.0.1:1234/a.png")], 400, "not a public address", "messages"),
    "metadata": ([at("http://169.254.169.254/latest")], 400, "not a public address", "messages"),
    "private": ([at("http://[::ffff:10.0.0.1]/a.png")], 400, "not a public address", "messages"),
    "nobody": ([at("http://nobody.invalid/a.png")], 400, "no address for", "messages"),
    "port": ([at("http://a:99999/")], 400, "no address for", "messages"),
    "frameless": ([video(b"GIF89a" + bytes(7) + b";")], 400, "the video", "messages"),
    "film-of-text": ([video(b"no film")], 400, "video", "messages"),
    "hundreds": ([shown(WIDE)] * 65, 400, "65 media in one request", "messages"),
    "a-thousand": ([at("data:,a")] * 1000, 400, "1000 media in one request", "messages"),
    "sound": ([{"type": "input_audio", "input_audio": {"data": "AAAA"}}], 400, "audio", "messages"),
    "no-url": ([{"type": "image_url", "image_url": {}}], 400, "'image_url'", CONTENT),
    "null": ([{"type": "image_url", "image_url": None}], 400, "'image_url'", CONTENT),
    "missing": ([{"type": "image_url"}], 400, "'image_url'", CONTENT),
    "url-of-5": ([at(5)], 400, "'image_url'", CONTENT),  # type: ignore[arg-type]
    "kind": ([{"type": "image", "image": "a.png"}], 400, "unknown field", f"{CONTENT}[0].image"),
    "hologram": ([{"type": "hologram"}], 400, "'hologram'", CONTENT),
    "no-text": ([{"type": "text"}], 400, "'text'", CONTENT),
    "nothing": ([], 400, "empty list", CONTENT),
}


@pytest.mark.parametrize("name", BAD)
def test_a_rejected_request_leaves_the_next_working(
    server: RunningServer, expected: str, name: str
) -> None:
    parts, status, reason, param = BAD[name]
    response = ask(server, *parts, "hello")
    if name == "nothing":
        message = {"role": "user", "content": []}
        response = server.post(CHAT, messages=[message], **GREEDY)
    refused(response, status, reason, param)
    assert reply_of(ask(server, shown(LARGE), "hello")) == expected


def test_a_stream_is_refused_by_status(server: RunningServer, expected: str) -> None:
    refused(ask(server, image(b"x"), stream=True), 400, "cannot be read", "messages")
    assert reply_of(ask(server, shown(LARGE), "hello")) == expected


def test_an_image_to_a_model_of_text(server: RunningServer) -> None:
    reason = "text accepts text only, not image"
    refused(ask(server, shown(WIDE), "hello", model="text"), 400, reason, "messages")
    assert reply_of(ask(server, "hello", model="text"))


def test_a_missing_preprocessor(server: RunningServer) -> None:
    response = ask(server, shown(WIDE), "hello", model="bare")
    refused(response, ConfigError.status, "preprocessor_config.json is missing", None)
    assert reply_of(ask(server, "hello", model="bare"))


def test_more_rows_than_the_context(server: RunningServer, expected: str) -> None:
    response = ask(server, *[shown(LARGE)] * 40, "hello")
    refused(response, 400, "maximum context length is 2048 tokens", "messages")
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert reply_of(ask(server, shown(LARGE), "hello")) == expected


PLACES = ["<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "<image>", "<|im_end|>"]


@pytest.mark.parametrize("words", PLACES)
def test_places_written_by_users_are_text(server: RunningServer, words: str) -> None:
    """They neither take an image nor shift the others, and count as the bytes they are."""
    pad = IDS["<|image_pad|>"]
    text = ask(server, words, logprobs=True, prompt_logprobs=0)
    ids = [next(iter(entry)) for entry in text.json()["prompt_logprobs"] if entry]
    assert reply_of(text) and str(pad) not in ids
    around = ask(server, words, shown(WIDE), words, shown(LARGE), words)
    plain = ask(server, "x", shown(WIDE), "x", shown(LARGE), "x")
    more = [response.json()["usage"]["prompt_tokens"] for response in (around, plain)]
    spelled = (
        text.json()["usage"]["prompt_tokens"] - ask(server, "x").json()["usage"]["prompt_tokens"]
    )
    assert more[0] == more[1] + 3 * spelled and spelled > 0
    swapped = ask(server, words, shown(LARGE), words, shown(WIDE), words)
    assert reply_of(swapped) != reply_of(around)


def test_places_in_a_completion_are_not_filled(server: RunningServer) -> None:
    response = server.post("/v1/completions", prompt="<|image_pad|> hello", **GREEDY)
    assert response.status_code == 200, response.text
    raw = server.post("/v1/completions", prompt=[IDS["<|image_pad|>"], 70], **GREEDY)
    assert raw.status_code == 200, raw.text


def media_worker_of(server: RunningServer) -> MediaWorker:
    found = server.server.service.models["vision"]["text"].model.media_worker
    assert isinstance(found, MediaWorker)
    return found


@pytest.mark.parametrize(
    ("deed", "status", "reason"),
    [
        ("leave", 400, "crashed the worker"),
        ("swell", 400, "exceeds the memory limit"),
        ("fail", 500, "see the server's log"),
        ("sleep", 400, "took longer than 120 s"),
    ],
)
def test_media_that_harm_the_worker_are_rejected(
    server: RunningServer,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    deed: str,
    status: int,
    reason: str,
) -> None:
    assert reply_of(ask(server, shown(LARGE), "hello")) == expected
    worker = media_worker_of(server)
    first = worker.pid
    # The clock passes the deadline after the message for the second item.
    now, sent, send = [0.0], count(1), worker._worker.send

    def note(data: bytes, deadline: float) -> None:
        send(data, deadline)
        now[0] = 2 * SECONDS if deed == "sleep" and next(sent) >= 4 else 0.0

    with monkeypatch.context() as patch:
        patch.setattr(worker._worker, "send", note)
        patch.setattr(worker._worker, "clock", lambda: now[0])
        refused(ask(server, shown(LARGE), image(hostile(deed)), "x"), status, reason, "messages")
    assert reply_of(ask(server, shown(LARGE), "hello")) == expected
    assert (media_worker_of(server).pid == first) == (deed in ("swell", "fail"))


@pytest.mark.process
def test_a_process_that_is_killed_mid_request(server: RunningServer, expected: str) -> None:
    first = media_worker_of(server).pid
    assert first is not None
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(ask, server, image(hostile("sleep")), "hello")
        time.sleep(0.5)
        os.kill(first, signal.SIGKILL)
        refused(asking.result(60), 503, "was killed; try again", None)
    assert reply_of(ask(server, shown(LARGE), "hello")) == expected
    assert media_worker_of(server).pid != first


def send(server: RunningServer, *parts: Any) -> socket.socket:
    """Send a request, and read nothing."""
    address = urlsplit(server.url)
    body = json.dumps({"messages": [asked(*parts)], **GREEDY}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    client = socket.create_connection((address.hostname, address.port), 10)
    client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return client


@pytest.mark.process
def test_a_disconnect_during_media_preparation_aborts(server: RunningServer, expected: str) -> None:
    pid = media_worker_of(server).pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    send(server, shown(LARGE), "hello").close()
    time.sleep(0.2)
    os.kill(pid, signal.SIGCONT)
    assert reply_of(ask(server, shown(LARGE), "hello")) == expected


@pytest.mark.process
def test_slow_media_do_not_delay_other_requests(server: RunningServer) -> None:
    pid = media_worker_of(server).pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        waiting = [send(server, shown(WIDE), f"hello {i}") for i in range(40)]
        time.sleep(0.3)
        asking = {"messages": [asked("hello")], **GREEDY}
        for model in ("text", "vision"):
            body = {**asking, "model": model}
            assert reply_of(httpx.post(server.url + CHAT, json=body, timeout=60))
    finally:
        os.kill(pid, signal.SIGCONT)
    for client in waiting:
        client.close()


def test_a_disconnect_before_admission_aborts(server: RunningServer, expected: str) -> None:
    pid = server.server.engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        client = send(server, shown(LARGE), "hello")
        begun = time.monotonic()
        while not server.server.engine.requests:
            assert time.monotonic() - begun < 60
            time.sleep(0.01)
        client.close()
        while server.server.engine.requests:
            assert time.monotonic() - begun < 60
            time.sleep(0.01)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert reply_of(ask(server, shown(LARGE), "hello")) == expected
    assert server.server.engine.pid == pid


@pytest.mark.process
def test_what_prepares_media_ends_with_the_server(tmp_path: Path) -> None:
    vision = make_vision(tmp_path / "vision")
    with ThreadPoolExecutor(1) as thread:
        with serving(Settings(reference=str(vision)), drain_timeout=0.1) as server:
            reply_of(ask(server, shown(WIDE), "hello"))
            pid = media_worker_of(server).pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            asking = thread.submit(ask, server, shown(WIDE), "hello")
            time.sleep(0.5)
        refused(asking.result(60), 503, "shutting down", None)
    assert not Path(f"/proc/{pid}").exists()
