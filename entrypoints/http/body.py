"""Reads a request's JSON body, within bounds of size, time, depth and form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message, Receive

from ostro.core.errors import RequestError

MAX_BYTES = 50 << 20
MAX_FORM = 512 << 20
"""Bytes of a form: some hours of compressed sound."""
MAX_DEPTH = 64
SECONDS = 60.0
"""How long a client may take to send its body."""
FORM_SECONDS = 600.0
CLOSE = {"connection": "close"}
SMALL = 64 << 10
"""Bytes that are parsed at once; more goes to a thread, so that the event loop stays free."""


async def read_json(request: Request) -> dict[str, Any]:
    """The JSON object that a request carries.

    Raises HTTPException 415, 413 or 408, and RequestError for what is not an acceptable object.
    """
    check_type(request)
    try:
        async with asyncio.timeout(SECONDS):
            data = await read(request)
    except TimeoutError:
        message = f"the body did not arrive within {SECONDS:.0f} s"
        raise HTTPException(408, message, CLOSE) from None
    return parse(data) if len(data) <= SMALL else await asyncio.to_thread(parse, data)


def check_type(request: Request) -> None:
    """Raise HTTPException 415 unless the body says that it is plain JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, f"Content-Type is {kind!r:.80}; send application/json")
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding != "identity":
        raise HTTPException(415, f"Content-Encoding {coding!r:.80} is not taken; send plain JSON")


@asynccontextmanager
async def read_form(request: Request) -> AsyncIterator[FormData]:
    """The fields and files of a multipart form; files beyond a megabyte lie on disk meanwhile.

    Raises HTTPException 415, 413 or 408, and RequestError for what is no form.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise HTTPException(415, f"Content-Type is {kind!r:.80}; send multipart/form-data")
    check_length(request, MAX_FORM)
    bounded = Request(request.scope, bound(request.receive))
    try:
        async with asyncio.timeout(FORM_SECONDS):
            form = await bounded.form(max_files=1, max_fields=32, max_part_size=1 << 20)
    except TimeoutError:
        message = f"the body did not arrive within {FORM_SECONDS:.0f} s"
        raise HTTPException(408, message, CLOSE) from None
    except HTTPException as error:
        if error.status_code != 400:
            raise
        raise RequestError(f"the form cannot be read: {error.detail:.200}") from None
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
    return HTTPException(413, f"the body exceeds {limit >> 20} MiB", CLOSE)


def bound(receive: Receive) -> Receive:
    """`receive`, which raises HTTPException 413 after more than `MAX_FORM` bytes."""
    size = 0

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > MAX_FORM:
            raise too_long(MAX_FORM)
        return message

    return counted


async def read(request: Request) -> bytes:
    """The body. Raises HTTPException 413 if it is longer than `MAX_BYTES`."""
    check_length(request, MAX_BYTES)
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BYTES:
            raise too_long(MAX_BYTES)
    return bytes(data)


def parse(data: bytes) -> dict[str, Any]:
    """Parse JSON strictly. Raises RequestError saying what is wrong, and where."""
    try:
        found = json.loads(
            data.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse_constant
        )
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise RequestError(f"the body is not JSON: {error.msg} ({where})") from None
    except RecursionError:
        raise RequestError(f"the body is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:
        raise RequestError("the body holds a number that is too long") from None
    if not isinstance(found, dict):
        raise RequestError(f"the body is a JSON {type(found).__name__}, not an object")
    check_values(found)
    return found


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object from its members. Raises RequestError when two have one name."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError(f"the body names {twice!r:.80} twice in one object")
    return found


def refuse_constant(name: str) -> NoReturn:
    raise RequestError(f"{name} is not JSON")


def check_values(found: dict[str, Any]) -> None:
    """Raise RequestError for too deep nesting, for text that is not Unicode, and for NUL."""
    level: list[Any] = [found]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                check_text(item)
            elif isinstance(item, dict):
                inner += item.keys()
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        if not inner:
            return
        level = inner
    raise RequestError(f"the body is nested deeper than {MAX_DEPTH} levels")


def check_text(text: str) -> None:
    if "\0" in text:
        raise RequestError("a text holds the character U+0000")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"a text holds half a surrogate pair (character {error.start})"
            ) from None
