"""A fake hub on 127.0.0.1, which can also simulate errors."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

SHA = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """The part of the hub's HTTP interface that downloads use."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.models: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.token = ""
        self.broken_off: dict[str, int] = {}
        self.down = 0
        self.asked: list[tuple[str, str, str]] = []
        self.tokens: set[str | None] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def fetched(self) -> set[str]:
        return {name for method, name, _ in self.asked if method == "GET"}


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).lstrip("/")
        self.server.tokens.add(self.headers.get("Authorization"))
        api = path.startswith("api/models/")
        parts = path.removeprefix("api/models/").split("/")
        name, rest = "/".join(parts[:2]), parts[2:]
        if self.server.down:
            return self.fail(self.server.down, "")
        if name in self.server.gated and self.headers.get("Authorization") != "Bearer open":
            return self.fail(401 if not self.headers.get("Authorization") else 403, "GatedRepo")
        if name not in self.server.models:
            return self.fail(404, "RepoNotFound")
        files = self.server.models[name]
        if api and rest[:1] == ["tree"]:
            return self.answer([entry(n, content) for n, content in files.items()])
        if rest and rest[1] not in ("main", "v1", SHA):
            return self.fail(404, "RevisionNotFound")
        if api:
            siblings = [{"rfilename": n} for n in files]
            return self.answer({"id": name, "sha": SHA, "siblings": siblings})
        self.send_file("/".join(rest[2:]), files)

    def send_file(self, name: str, files: dict[str, bytes]) -> None:
        self.server.asked.append((self.command, name, self.headers.get("Range", "")))
        if name not in files:
            return self.fail(404, "EntryNotFound")
        content, start = files[name], 0
        if span := self.headers.get("Range"):
            start = int(span.removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if span else 200)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", SHA)
        self.send_header("Accept-Ranges", "bytes")
        if span:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.server.broken_off.get(name, 0) > 0:
            self.server.broken_off[name] -= 1
            self.wfile.write(content[start : start + max(1, (len(content) - start) // 2)])
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.wfile.write(content[start:])

    def answer(self, body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def fail(self, status: int, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def entry(name: str, content: bytes) -> dict[str, object]:
    return {
        "type": "file",
        "path": name,
        "size": len(content),
        "oid": hashlib.sha1(content).hexdigest(),
    }


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1024)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
