"""`--log-requests`: bodies of requests and responses in a file."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ostro.core.errors import UsageError
from ostro.entrypoints.http.body_log import Body, BodyLog, BodyLogMiddleware
from ostro.entrypoints.http.request_record import RECORD, RequestRecord

MEDIUM = bytes(range(256)) * 8
HASHED = {"sha256": hashlib.sha256(MEDIUM).hexdigest(), "bytes": len(MEDIUM)}


def read(file: Path, count: int) -> list[Any]:
    deadline = time.monotonic() + 120
    while len(lines := file.read_text().splitlines()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return [json.loads(line) for line in lines]


def test_bodies_of_requests_and_responses(start: Any, tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    log = BodyLog(file, 1 << 20)
    server = start(body_log=log, keys=["sk-secret"])
    server.http.headers["authorization"] = "Bearer sk-secret"
    assert server.complete("hello\nyou", max_tokens=2).status_code == 200
    server.events("/v1/completions", prompt="abc", max_tokens=2)
    server.http.get("/v1/models")
    url = "data:image/png;base64," + base64.b64encode(MEDIUM).decode()
    part = {"type": "image_url", "image_url": {"url": url}}
    tool = {"type": "mcp", "headers": {"x": "token"}, "authorization": "token"}
    assert server.post(
        "/v1/chat/completions", messages=[{"role": "user", "content": [part]}], tools=[tool]
    ).is_error
    files = {"file": ("a.wav", MEDIUM)}
    assert server.http.post("/v1/audio/transcriptions", files=files).is_error
    whole, stream, chat, form = read(file, 4)
    assert whole["request"] == {"prompt": "hello\nyou", "max_tokens": 2}
    assert whole["response"]["choices"][0]["text"] == "he"
    assert (whole["status"], whole["model"], whole["route"]) == (200, "echo", "/v1/completions")
    assert "".join(event["choices"][0]["text"] for event in stream["response"][:-1]) == "ab"
    assert stream["response"][-1] == "[DONE]"
    assert chat["request"]["messages"][0]["content"][0]["image_url"]["url"] == HASHED
    assert chat["request"]["tools"] == [
        {"type": "mcp", "headers": "[removed]", "authorization": "[removed]"}
    ]
    assert form["request"].keys() == {"sha256", "bytes"}
    text = file.read_text()
    assert "sk-secret" not in text and "token" not in text.replace("max_tokens", "").replace(
        "_tokens", ""
    )
    assert file.stat().st_mode & 0o777 == 0o600
    log.close()


def body(text: str) -> Body:
    found = Body()
    found.start([(b"content-type", b"application/json")])
    found.add(json.dumps({"prompt": text}).encode())
    return found


def test_the_file_is_replaced_before_it_exceeds_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "log"
    log = BodyLog(file, 2000)
    for number in range(20):
        record = RequestRecord({"type": "http", "headers": []}, str(number), "")
        log.add(record, body(f"{number} " * 100), body("answer"))
    log.close()
    old = tmp_path / "log.1"
    assert sorted(tmp_path.iterdir()) == [file, old]
    for each in (file, old):
        assert 0 < each.stat().st_size <= 2000 and each.stat().st_mode & 0o777 == 0o600
    ids = [json.loads(x)["request_id"] for x in (old.read_text() + file.read_text()).splitlines()]
    assert ids == [str(number) for number in range(20 - len(ids), 20)]


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "real").touch(mode=0o644)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    refused: list[Callable[[], Any]] = [
        lambda: BodyLog(tmp_path / "link", 100),
        lambda: BodyLog(tmp_path / "pipe", 100),
        lambda: BodyLog(tmp_path / "nowhere" / "log", 100),
    ]
    for make in refused:
        with pytest.raises(UsageError, match="--log-requests"):
            make()
    BodyLog(tmp_path / "real", 100).close()
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o600, "other users lose their access"


def test_bodies_that_are_not_json() -> None:
    found = Body()
    found.start([(b"content-type", b"application/json; charset=utf-8")])
    assert found.content() is None
    found.add(b'{"a": \xff\n')
    assert found.content() == '{"a": \ufffd'
    found = Body()
    found.start([(b"content-type", b"audio/wav")])
    found.add(MEDIUM)
    assert found.content() == HASHED and found.data is None


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "POST"])
def test_only_bodies_that_routes_read_are_kept(method: str) -> None:
    route = SimpleNamespace(record=SimpleNamespace(scope="infer"))
    scope: Any = {"type": "http", "method": method, "headers": [], "route": route}
    kept: list[Body] = []
    log: Any = SimpleNamespace(add=lambda record, sent, received: kept.append(sent))
    parts: list[Any] = [{"type": "http.request", "body": b"x" * 100, "more_body": True}] * 3

    async def receive() -> Any:
        return parts.pop() if parts else {"type": "http.disconnect"}

    async def watch(scope: Any, receive: Any, send: Any) -> None:
        """Reads until the client disconnects, as a stream does."""
        while (await receive())["type"] != "http.disconnect":
            pass

    async def send(message: Any) -> None:
        raise AssertionError("there is no response")

    async def main() -> None:
        RECORD.set(RequestRecord(scope, "id", ""))
        await BodyLogMiddleware(watch, log)(scope, receive, send)

    asyncio.run(main())
    assert [body.size for body in kept] == ([300] if method == "POST" else [])
    assert not parts
