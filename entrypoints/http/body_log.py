"""`--log-requests FILE`: the bodies of requests to models and of their responses, as JSON lines.

Media are replaced by their SHA-256 and size. Headers are not written, so neither are API keys.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import logging
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ostro.core.errors import UsageError
from ostro.entrypoints.http.request_record import RECORD, RequestRecord, record_of

log = logging.getLogger(__name__)
LOG_BYTES = 100_000_000
"""Default limit on the file, in bytes."""
MAX_KEPT = 50 << 20
"""Limit on the bytes of a body that is written; a longer one is replaced by its hash and size."""
MAX_PENDING = 64
"""Requests that wait to be written; further ones are left out with a warning."""
DATA_URL = re.compile(r"data:[^,\s]{0,200};base64,", re.ASCII)
MEDIA_CHARACTERS = 1024
"""Characters from which on a string in base64 counts as media."""
BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}", re.ASCII)
SECRETS = frozenset(("authorization", "api_key", "headers"))
"""Members of requests that may hold keys, such as those of MCP servers."""
REMOVED = "[removed]"
WITHOUT_BODY = ("GET", "HEAD", "DELETE")
"""Methods of requests whose body no route reads."""


class BodyLog:
    """Writes a line for each request to a model to a file of mode 0600.

    The file is renamed to FILE.1 before it exceeds its limit. A thread parses and writes.
    """

    def __init__(self, file: Path, limit: int) -> None:
        """limit: of the file, in bytes. Raises UsageError if the file cannot be written, and if it
        is a link or belongs to another user.
        """
        self.file, self.limit = file, limit
        self.places = BoundedSemaphore(MAX_PENDING)
        self.output = open_private(file)
        self.thread = ThreadPoolExecutor(1, "log-requests")

    def add(self, record: RequestRecord, sent: Body, received: Body) -> None:
        """Write a request that has ended."""
        if not self.places.acquire(blocking=False):
            log.warning("--log-requests: request %s is left out; the disk is slow", record.id)
            return
        entry = {
            "time": datetime.fromtimestamp(record.started, UTC).isoformat(),
            "request_id": record.id,
            "key": record.caller,
            "method": record.method,
            "route": record.route,
            "status": record.status,
            "model": record.model,
        }
        self.thread.submit(self.write, entry, sent, received)

    def write(self, entry: dict[str, Any], sent: Body, received: Body) -> None:
        """Write a line, in the thread."""
        try:
            entry |= {"request": sent.content(), "response": received.content()}
            line = json.dumps(entry).encode() + b"\n"
            size = os.fstat(self.output).st_size
            if size and size + len(line) > self.limit:
                os.close(self.output)
                os.replace(self.file, f"{self.file}.1")
                self.output = open_private(self.file)
            with open(self.output, "ab", closefd=False) as output:
                output.write(line)
        except (OSError, UsageError) as error:
            log.warning("--log-requests %s: %s", self.file, error)
        finally:
            self.places.release()

    def close(self) -> None:
        """Write what is pending, and close the file."""
        self.thread.shutdown()
        os.close(self.output)


def open_private(file: Path) -> int:
    """Open a file to append to, with mode 0600. Raises UsageError as `BodyLog`."""
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        flags |= os.O_CLOEXEC | os.O_NONBLOCK  # a pipe without a reader would block
        descriptor = os.open(file, flags, 0o600)
    except OSError as error:
        raise UsageError(f"--log-requests {file}: {error.strerror}") from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise UsageError(f"--log-requests {file}: not a file of this user")
    os.fchmod(descriptor, 0o600)
    return descriptor


class Body:
    """The body of a request or of a response: its bytes if they are text, and its hash."""

    def __init__(self) -> None:
        self.kind, self.size, self.digest = "", 0, hashlib.sha256()
        self.data: bytearray | None = bytearray()

    def start(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Read the content type of the headers; only JSON, events and text are kept."""
        kind = dict(headers).get(b"content-type", b"").partition(b";")[0].strip().lower()
        self.kind = kind.decode("latin-1")
        if not self.kind.startswith(("application/json", "text/", "application/x-ndjson")):
            self.data = None

    def add(self, part: bytes) -> None:
        """Add bytes."""
        self.size += len(part)
        self.digest.update(part)
        if self.data is not None:
            self.data += part
            if self.size > MAX_KEPT:
                self.data = None

    def content(self) -> Any:
        """The body as JSON, with hashes in the place of media; None if it is empty."""
        if not self.size:
            return None
        if self.data is None:
            return {"sha256": self.digest.hexdigest(), "bytes": self.size}
        if self.kind == "text/event-stream":
            lines = bytes(self.data).split(b"\n")
            return [shown(line[5:]) for line in lines if line.startswith(b"data:")]
        return shown(bytes(self.data))


def shown(text: bytes) -> Any:
    """A JSON text without media and secrets; other text as a string."""
    try:
        return redacted(msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return redacted(text.decode("utf-8", "replace").strip())


def redacted(value: Any) -> Any:
    """JSON without media and secrets."""
    if isinstance(value, dict):
        pairs = value.items()
        return {k: REMOVED if k.lower() in SECRETS else redacted(v) for k, v in pairs}
    if isinstance(value, list):
        return [redacted(each) for each in value]
    if not isinstance(value, str):
        return value
    if found := DATA_URL.match(value):
        return media(value[found.end() :])
    return media(value) if len(value) >= MEDIA_CHARACTERS and BASE64.fullmatch(value) else value


def media(text: str) -> dict[str, Any]:
    """The hash and size of media in base64."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = text.encode("utf-8", "surrogatepass")
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


class BodyLogMiddleware:
    """ASGI middleware that gives a `BodyLog` the requests of the scope "infer"."""

    def __init__(self, app: ASGIApp, log: BodyLog) -> None:
        self.app, self.log = app, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The body of a GET is read to notice a disconnect; it counts towards no limit.
        if scope["type"] != "http" or scope["method"] in WITHOUT_BODY:
            return await self.app(scope, receive, send)
        sent, received = Body(), Body()
        sent.start(scope["headers"])

        async def keeping_receive() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                sent.add(message.get("body", b""))
            return message

        async def keeping_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                received.start(message.get("headers", []))
            elif message["type"] == "http.response.body":
                received.add(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, keeping_receive, keeping_send)
        finally:
            record, route = RECORD.get(), record_of(scope)
            if record is not None and route is not None and route.scope == "infer" and sent.size:
                self.log.add(record, sent, received)
