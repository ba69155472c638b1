"""Reads request bodies, JSON and forms, with limits on size, time and nesting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache, partial
from typing import Any, TypeVar

import msgspec
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message, Receive

from ostro.core import pipeline
from ostro.core.errors import RequestError, StoreError, Unsupported
from ostro.entrypoints.http.budget import HeldBody
from ostro.entrypoints.http.context import operations_of
from ostro.entrypoints.http.errors import CLOSE
from ostro.entrypoints.http.json_scanner import check_text
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
SECONDS = 60.0
"""Time limit for receiving a JSON body."""
FORM_SECONDS = 600.0
"""Time limit for receiving a form."""
SMALL = 64 << 10
"""Bytes that are decoded on the event loop; larger bodies are decoded in a thread."""
DECODER = ThreadPoolExecutor(1, thread_name_prefix="body")
"""The thread that decodes large bodies. It holds the GIL for most of the time: a second one would
decode no more, and delay other requests twice as long.
"""
MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
OBJECT = msgspec.json.Decoder(dict[str, Any])
NULL = msgspec.Raw(b"null")
R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")


async def read_request(
    request: Request,
    kind: type[R],
    prompts: int = 1,
    check: Callable[[Mapping[str, Any]], None] | None = None,
    *,
    any_type: bool = False,
    limit: int | None = None,
) -> R:
    """Return the request in a JSON body; `prompts` are the most that it may contain.

    check: called with the JSON of a body that the type rejects; it may raise a better error.
    any_type: accept other content types, which `curl -d` sends, from clients that are not browsers.
    limit: on the bytes of the body; without it `max_bytes`.
    Raises as `read_json`, and RequestError for fields that the type rejects.
    """
    if limit is None:
        limit = max_bytes(operations_of(request).service, prompts)
    data = await read_data(request, limit, any_type)
    return await decode_aside(len(data), partial(decode, data, kind, check=check))


def max_bytes(service: Service, prompts: int = 1) -> int:
    """Return the limit on the bytes of a JSON body with this number of prompts.

    The limit grows with the largest context. Chats with media may need all of `MAX_BYTES`.
    """
    context = service.max_context
    if service.takes_media or context is None:
        return MAX_BYTES
    text = TOKEN_BYTES * context * max(prompts, PROMPT_FACTOR)
    return min(MAX_BYTES, BODY_SLACK + text)


async def read_json(
    request: Request, limit: int = MAX_BYTES, *, any_type: bool = False
) -> dict[str, Any]:
    """Return the JSON object in the body of a request, of at most `limit` bytes.

    any_type: as in `read_request`. Raises HTTPException 408, 413, 415 or 503, and RequestError as
    `decode_object`.
    """
    data = await read_data(request, limit, any_type)
    return await decode_aside(len(data), partial(decode_object, data))


async def read_data(request: Request, limit: int, any_type: bool = False) -> bytearray:
    """Return the body of a request for JSON. Raises HTTPException as `read_json`."""
    check_type(request, any_type)
    try:
        async with asyncio.timeout(SECONDS):
            return await read(request, limit)
    except TimeoutError:
        message = f"the body did not arrive within {SECONDS:.0f} s"
        raise HTTPException(408, message, CLOSE) from None


async def decode_aside(size: int, work: Callable[[], T]) -> T:
    """Return the result of decoding a body of `size` bytes: in a thread if it is large."""
    if size <= SMALL:
        return work()
    return await asyncio.get_running_loop().run_in_executor(DECODER, work)


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
async def read_form(request: Request, files: int = 1) -> AsyncIterator[FormData]:
    """Yield the fields and files of a multipart form. Files above 1 MB are spooled to disk.

    files: the most that the form may contain.

    Raises HTTPException 415, 413 or 408, RequestError for a malformed form, and StoreError if the
    disk is full.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise HTTPException(415, f"Content-Type is {kind!r:.80}; send multipart/form-data")
    check_length(request, MAX_FORM)
    bounded = Request(request.scope, bound(request))
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


async def read(request: Request, limit: int) -> bytearray:
    """Return the body. Raises HTTPException 413 if it is longer than `limit`, and 503."""
    check_length(request, limit)
    held, data = HeldBody.of(request), bytearray()
    async for chunk in request.stream():
        held.add(len(chunk))
        data += chunk
        if len(data) > limit:
            raise too_long(limit)
    return data


def decode(
    data: bytes | bytearray,
    kind: type[R],
    *,
    strict: bool = True,
    check: Callable[[Mapping[str, Any]], None] | None = None,
) -> R:
    """Decode a JSON object straight to a request. A field that is null counts as absent.

    strict: as in `pipeline.parse`. check: as in `read_request`. Raises RequestError as
    `decode_object`, and for unknown and mistyped fields.
    """
    with decoding_errors():
        if check_text(data) <= plain_fields(kind):
            with suppress(msgspec.ValidationError):
                return decoder_of(kind, strict).decode(data)
        try:
            return decode_members(data, kind, strict)
        except (RequestError, Unsupported):
            if check is not None:
                check(OBJECT.decode(data))
            raise


def decode_members(data: bytes | bytearray, kind: type[R], strict: bool) -> R:
    """Decode a JSON object without the members that are null. Raises as `decode`."""
    members = {name: value for name, value in MEMBERS.decode(data).items() if value != NULL}
    pipeline.check_fields(members, kind)
    try:
        return decoder_of(kind, strict).decode(msgspec.json.encode(members))
    except msgspec.ValidationError as error:
        raise pipeline.mistyped(error) from None


@lru_cache(maxsize=256)
def plain_fields(kind: type[msgspec.Struct]) -> frozenset[bytes]:
    """Return the names of the supported fields for which null is the default or no value."""
    unsupported = getattr(kind, "unsupported", {})
    fields = (f for f in msgspec.structs.fields(kind) if f.required or f.default is None)
    names = {field.encode_name for field in fields} - set(unsupported)
    return frozenset(name.encode() for name in names)


def decode_object(data: bytes | bytearray) -> dict[str, Any]:
    """Decode a JSON object. Raises RequestError with the cause and its position."""
    with decoding_errors():
        check_text(data)
        return OBJECT.decode(data)


@lru_cache(maxsize=256)
def decoder_of(kind: type[R], strict: bool) -> msgspec.json.Decoder[R]:
    """Return the decoder of a type of requests."""
    return msgspec.json.Decoder(kind, strict=strict)


@contextmanager
def decoding_errors() -> Iterator[None]:
    """Convert the errors of decoders to RequestError."""
    try:
        yield
    except UnicodeDecodeError:
        raise RequestError("the body is not valid UTF-8") from None
    except msgspec.ValidationError as error:
        raise RequestError(f"the body is not a JSON object: {error}") from None
    except msgspec.DecodeError as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        raise RequestError(f"the body is not valid JSON: {reason}") from None
