"""Reads request bodies, JSON and forms, with limits on size, time and nesting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message, Receive

from ostro.core.errors import RequestError, StoreError
from ostro.core.routes import FORM, RequestBody
from ostro.entrypoints.http.budget import HeldBody
from ostro.entrypoints.http.context import operations_of
from ostro.entrypoints.http.errors import CLOSE
from ostro.entrypoints.operations.requests.decoding import (
    MAX_BYTES,
    decode_aside,
    decode_object,
    json_aside,
    max_bytes,
)

MAX_FORM = 512 << 20
"""Limit on the bytes of a form: some hours of compressed audio."""
SECONDS = 60.0
"""Time limit for receiving a JSON body."""
FORM_SECONDS = 600.0
"""Time limit for receiving a form."""
DEFAULT = RequestBody()
R = TypeVar("R", bound=msgspec.Struct)


async def read_request(request: Request, kind: type[R], body: RequestBody = DEFAULT) -> R:
    """Return the request in a JSON body.

    Raises HTTPException 408, 413, 415 or 503, RequestError as `decode_object` and for fields that
    the type rejects.
    """
    limit = max_bytes(operations_of(request).service, body)
    data = await read_data(request, limit, body.any_type)
    return await decode_aside(data, kind, body.check)


async def read_json(
    request: Request, limit: int = MAX_BYTES, *, any_type: bool = False
) -> dict[str, Any]:
    """Return the JSON object in the body of a request, of at most `limit` bytes.

    any_type: as in `read_request`. Raises HTTPException 408, 413, 415 or 503, and RequestError as
    `decode_object`.
    """
    data = await read_data(request, limit, any_type)
    return await json_aside(len(data), partial(decode_object, data))


async def read_data(request: Request, limit: int, any_type: bool = False) -> bytearray:
    """Return the body of a request for JSON. Raises HTTPException as `read_json`."""
    check_type(request, any_type)
    return await read_in_time(request, limit)


async def read_in_time(request: Request, limit: int) -> bytearray:
    """Return the body of a request, of any type and at most `limit` bytes.

    Raises HTTPException 408, 413 or 503.
    """
    try:
        async with asyncio.timeout(SECONDS):
            return await read(request, limit)
    except TimeoutError:
        message = f"the body did not arrive within {SECONDS:.0f} s"
        raise HTTPException(408, message, CLOSE) from None


def check_type(request: Request, any_type: bool = False) -> None:
    """Raise HTTPException 415 unless the headers declare uncompressed JSON.

    any_type: clients without the header Origin need not declare JSON. Browsers always send it with
    a POST, and send other types to other sites without asking them.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (any_type and "origin" not in request.headers):
        raise HTTPException(415, f"Content-Type is {kind!r:.80}; send application/json")
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding != "identity":
        message = f"Content-Encoding {coding!r:.80} is not supported; send uncompressed JSON"
        raise HTTPException(415, message)


@asynccontextmanager
async def read_form(
    request: Request, files: int = 1, limit: int | None = None
) -> AsyncIterator[FormData]:
    """Yield the fields and files of a multipart form. Files above 1 MB are spooled to disk.

    files: the most that the form may contain. limit: on its bytes, None for `MAX_FORM`.

    Raises HTTPException 415, 413 or 408, RequestError for a malformed form, and StoreError if the
    disk is full.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM:
        raise HTTPException(415, f"Content-Type is {kind!r:.80}; send {FORM}")
    limit = MAX_FORM if limit is None else limit
    check_length(request, limit)
    # Starlette limits the number of files and fields, but not the bytes of a file.
    bounded = Request(request.scope, bound(request, limit))
    try:
        async with asyncio.timeout(FORM_SECONDS):
            form = await bounded.form(max_files=files, max_fields=32, max_part_size=1 << 20)
    except TimeoutError:
        message = f"the body did not arrive within {FORM_SECONDS:.0f} s"
        raise HTTPException(408, message, CLOSE) from None
    except OSError as error:  # of the temporary file
        raise StoreError(f"the form cannot be stored: {error.strerror}; try again later") from None
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


def bound(request: Request, limit: int) -> Receive:
    """Return a `receive` that raises HTTPException 413 after more than `limit` bytes."""
    held = HeldBody.of(request)

    async def counted() -> Message:
        message = await request.receive()
        held.add(len(message.get("body", b"")))
        if held.size > limit:
            raise too_long(limit)
        return message

    return counted


async def read(request: Request, limit: int) -> bytearray:
    """Return the body. Raises HTTPException 413 if it is longer than `limit`, and 503."""
    check_length(request, limit)
    held, data = HeldBody.of(request), bytearray()
    # Content-Length may be absent: the bytes are counted as they arrive.
    async for chunk in request.stream():
        held.add(len(chunk))
        data += chunk
        if len(data) > limit:
            raise too_long(limit)
    return data
