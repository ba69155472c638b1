"""Reads request bodies, JSON and forms, with limits on size, time and nesting."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message, Receive

from ostro.core import pipeline
from ostro.core.errors import RequestError
from ostro.entrypoints.http.budget import HeldBody
from ostro.entrypoints.http.context import operations_of
from ostro.entrypoints.http.errors import CLOSE
from ostro.entrypoints.operations.service import Service

MAX_BYTES = 50 << 20
"""Limit on the bytes of a JSON body."""
BODY_SLACK = 1 << 20
"""Bytes of a JSON body for tools, options and other fields besides the prompt."""
TOKEN_BYTES = 4
"""Typical bytes of English text per token."""
PROMPT_FACTOR = 8
"""Factor between the largest and the typical text of a prompt: JSON escapes, white space."""
MAX_FORM = 512 << 20
"""Limit on the bytes of a form: some hours of compressed audio."""
MAX_DEPTH = 64
MAX_NODES = 200_000
"""Members, arrays and objects of a JSON body: several times what 10,000 messages need."""
MAX_ITEMS = 1 << 20
"""Items of all arrays and objects of a JSON body: a context of a million token ids."""
TOO_DEEP = f"the body is nested deeper than {MAX_DEPTH} levels"
SECONDS = 60.0
"""Time limit for receiving a JSON body."""
FORM_SECONDS = 600.0
"""Time limit for receiving a form."""
SMALL = 64 << 10
"""Bytes that are parsed on the event loop; larger bodies are parsed in a thread."""
PIECE = 64 << 10
"""Bytes that are scanned at a time."""
R = TypeVar("R", bound=msgspec.Struct)


async def read_request(request: Request, kind: type[R], prompts: int = 1) -> R:
    """Return the request in a JSON body; `prompts` are the most that it may contain.

    Raises as `read_json`, and RequestError for fields that the type rejects.
    """
    limit = max_bytes(operations_of(request).service, prompts)
    return pipeline.parse(await read_json(request, limit), kind)


def max_bytes(service: Service, prompts: int = 1) -> int:
    """Return the limit on the bytes of a JSON body with this number of prompts.

    The limit grows with the largest context. Chats with media may need all of `MAX_BYTES`.
    """
    info = service.engine.info
    if service.takes_media or info is None:
        return MAX_BYTES
    context = max(facts.context for facts in info.models.values())
    text = TOKEN_BYTES * context * max(prompts, PROMPT_FACTOR)
    return min(MAX_BYTES, BODY_SLACK + text)


async def read_json(request: Request, limit: int = MAX_BYTES) -> dict[str, Any]:
    """Return the JSON object in the body of a request, of at most `limit` bytes.

    Raises HTTPException 408, 413, 415 or 503, and RequestError if `parse` rejects the body.
    """
    check_type(request)
    try:
        async with asyncio.timeout(SECONDS):
            data = await read(request, limit)
    except TimeoutError:
        message = f"the body did not arrive within {SECONDS:.0f} s"
        raise HTTPException(408, message, CLOSE) from None
    return parse(data) if len(data) <= SMALL else await asyncio.to_thread(parse, data)


def check_type(request: Request) -> None:
    """Raise HTTPException 415 unless the headers declare uncompressed JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, f"Content-Type is {kind!r:.80}; send application/json")
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding != "identity":
        message = f"Content-Encoding {coding!r:.80} is not supported; send uncompressed JSON"
        raise HTTPException(415, message)


@asynccontextmanager
async def read_form(request: Request) -> AsyncIterator[FormData]:
    """Yield the fields and files of a multipart form. Files above 1 MB are spooled to disk.

    Raises HTTPException 415, 413 or 408, and RequestError for a malformed form.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise HTTPException(415, f"Content-Type is {kind!r:.80}; send multipart/form-data")
    check_length(request, MAX_FORM)
    bounded = Request(request.scope, bound(request))
    try:
        async with asyncio.timeout(FORM_SECONDS):
            form = await bounded.form(max_files=1, max_fields=32, max_part_size=1 << 20)
    except TimeoutError:
        message = f"the body did not arrive within {FORM_SECONDS:.0f} s"
        raise HTTPException(408, message, CLOSE) from None
    except HTTPException as error:
        if error.status_code != 400:
            raise
        raise RequestError(f"the form is malformed: {error.detail:.200}") from None
    try:
        yield form
    finally:
        await form.close()


def check_length(request: Request, limit: int) -> None:
    """Raise HTTPException 413 for a Content-Length above the limit."""
    size = request.headers.get("content-length", "0")
    if size.isdigit() and int(size) > limit:
        raise too_long(limit)


def too_long(limit: int) -> HTTPException:
    return HTTPException(413, f"the body exceeds {limit} bytes", CLOSE)


def bound(request: Request) -> Receive:
    """Return a `receive` that raises HTTPException 413 after more than `MAX_FORM` bytes."""
    held = HeldBody.of(request)

    async def counted() -> Message:
        message = await request.receive()
        held.add(len(message.get("body", b"")))
        if held.size > MAX_FORM:
            raise too_long(MAX_FORM)
        return message

    return counted


async def read(request: Request, limit: int) -> bytes:
    """Return the body. Raises HTTPException 413 if it is longer than `limit`, and 503."""
    check_length(request, limit)
    held, data = HeldBody.of(request), bytearray()
    async for chunk in request.stream():
        held.add(len(chunk))
        data += chunk
        if len(data) > limit:
            raise too_long(limit)
    return bytes(data)


def parse(data: bytes) -> dict[str, Any]:
    """Parse JSON strictly. Raises RequestError with the cause and its position."""
    members = count_members(data)
    try:
        found = msgspec.json.decode(data)
    except UnicodeDecodeError:
        raise RequestError("the body is not valid UTF-8") from None
    except RecursionError:
        raise RequestError(TOO_DEEP) from None
    except msgspec.ValidationError:
        raise RequestError("the body contains a number that is out of range") from None
    except msgspec.DecodeError as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        raise RequestError(f"the body is not valid JSON: {reason}") from None
    if not isinstance(found, dict):
        raise RequestError(f"the body is a JSON {type(found).__name__}, expected an object")
    if check_values(found) < members:  # the decoder keeps the last of several equal names
        raise repeated(data)
    return found


def count_members(data: bytes) -> int:
    """Return the number of members of all objects in a JSON text; repeated names all count.

    Raises RequestError for more members, arrays and objects than `MAX_NODES`, and for more items
    of arrays and objects than `MAX_ITEMS`: the decoder holds the GIL, for longer the more there
    are. This function goes through the text piece by piece, so that other threads run meanwhile.
    """
    members = nodes = items = start = 0
    inside = False  # whether the piece starts within a string
    while start < len(data):
        piece = data[start : start + PIECE]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = data[start : start + PIECE + 1]  # a backslash and the character it escapes
        start += len(piece)
        parts = piece.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        outside = b"".join(parts[inside::2])
        inside ^= len(parts) % 2 == 0
        members += outside.count(b":")
        nodes += outside.count(b"[") + outside.count(b"{")
        items += outside.count(b",")
        if members + nodes > MAX_NODES or items > MAX_ITEMS:
            raise RequestError(
                f"the body has more than {MAX_NODES} members, arrays and objects, or more than "
                f"{MAX_ITEMS} items"
            )
    return members


def repeated(data: bytes) -> RequestError:
    """Return the error for an object that has two members of one name."""
    names: list[str] = []

    def check(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                names.append(name)
            seen.add(name)

    json.loads(data, object_pairs_hook=check)
    return RequestError(f"the body has two members named {names[0]!r:.80} in one object")


def check_values(found: dict[str, Any]) -> int:
    """Return the number of members of all objects in a parsed body.

    Raises RequestError for nesting that is too deep, and for the character U+0000.
    """
    members = 0
    level: list[Any] = [found]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                if "\0" in item:
                    raise RequestError("a text contains the character U+0000")
            elif isinstance(item, dict):
                members += len(item)
                inner += item.keys()
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        if not inner:
            return members
        level = inner
    raise RequestError(TOO_DEEP)
