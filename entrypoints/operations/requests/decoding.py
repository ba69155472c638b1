"""Decodes JSON bodies straight to requests, with limits on size and nesting."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import lru_cache, partial
from typing import Any, ParamSpec, TypeVar

import msgspec

from ostro.core import pipeline
from ostro.core.errors import RequestError, Unsupported
from ostro.core.routes import RequestBody
from ostro.core.turns import OWNER, FairThreads
from ostro.entrypoints.operations.models.service import Service
from ostro.entrypoints.operations.requests.ignored import ignore
from ostro.entrypoints.operations.requests.json_scanner import check_text
from ostro.entrypoints.operations.requests.known_fields import known_fields

MAX_BYTES = 50 << 20
"""Limit on the bytes of a JSON body."""
BODY_SLACK = 1 << 20
"""Bytes of a JSON body for tools, options and other fields besides the prompt."""
TOKEN_BYTES = 4
"""Typical bytes of English text per token."""
PROMPT_FACTOR = 8
"""Factor between the largest and the typical text of a prompt: JSON escapes, white space."""
SMALL = 64 << 10
"""Bytes of JSON that are decoded or encoded on the event loop; more are, in a thread."""
BODY_BYTES = ContextVar[int]("BODY_BYTES", default=0)
"""The size of the JSON body that is handled."""
DECODER = FairThreads(1, "json")
"""The thread that decodes and encodes large JSON, of its owners in turn. It holds the GIL for most
of the time: a second one would do no more, and delay other requests twice as long.
"""
MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
OBJECT = msgspec.json.Decoder(dict[str, Any])
NULL = msgspec.Raw(b"null")
R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")
P = ParamSpec("P")


def max_bytes(service: Service, body: RequestBody) -> int:
    """Return the limit on the bytes of a JSON body.

    Without a limit of its own it grows with the largest context. Chats with media may need all of
    `MAX_BYTES`.
    """
    if body.max_bytes is not None:
        return body.max_bytes
    context = service.max_context
    if service.takes_media or context is None:
        return MAX_BYTES
    text = TOKEN_BYTES * context * max(body.max_inputs, PROMPT_FACTOR)
    return min(MAX_BYTES, BODY_SLACK + text)


async def json_aside(size: int, work: Callable[[], T]) -> T:
    """Return the result of work on JSON of `size` bytes: in a thread if it is large."""
    if size <= SMALL:
        return work()
    aside = partial(copy_context().run, uncollected, work)
    return await asyncio.wrap_future(DECODER.submit(OWNER.get(), aside))


async def decode_aside(
    data: bytes | bytearray,
    kind: type[R],
    check: Callable[[Mapping[str, Any]], None] | None = None,
) -> R:
    """Return the request in the body that is handled. Raises as `decode`."""
    BODY_BYTES.set(len(data))
    return await json_aside(len(data), partial(decode, data, kind, check=check))


async def convert_aside(convert: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return `convert(*args, **kwargs)`, which converts the body that is handled.

    In a thread if the body is large, since it may have a million items.
    """
    return await json_aside(BODY_BYTES.get(), partial(convert, *args, **kwargs))


def uncollected(work: Callable[[], T]) -> T:
    """Return the result of work during which no garbage is collected. One thread calls this.

    Decoding makes many objects and no garbage. Collections meanwhile look at all objects of the
    process, for a second if they are millions, and hold the GIL.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return work()
    finally:
        if enabled:
            gc.enable()


def decode(
    data: bytes | bytearray,
    kind: type[R],
    *,
    check: Callable[[Mapping[str, Any]], None] | None = None,
) -> R:
    """Decode a JSON object straight to a request. A field that is null counts as absent.

    check: as in `RequestBody`. Raises RequestError as `decode_object`, for mistyped fields and,
    unless they are ignored, for unknown ones.
    """
    with decoding_errors():
        if check_text(data) <= plain_fields(kind):
            with suppress(msgspec.ValidationError):
                return decoder_of(kind).decode(data)
        try:
            return decode_members(data, kind)
        except (RequestError, Unsupported):
            if check is not None:
                with suppress(msgspec.ValidationError):  # a number beyond all floats: named above
                    check(OBJECT.decode(data))
            raise


def decode_members(data: bytes | bytearray, kind: type[R]) -> R:
    """Decode a JSON object without the members that are null. Raises as `decode`."""
    members = {name: value for name, value in MEMBERS.decode(data).items() if value != NULL}
    pipeline.check_fields(members, kind, ignore)  # the types of whole bodies accept any fields
    known = {name: members[name] for name in members if name in kind.__struct_encode_fields__}
    given = msgspec.json.encode(known)
    with suppress(msgspec.ValidationError):  # most unknown fields are not within others
        return decoder_of(kind).decode(given)
    try:
        return decoder_of(kind).decode(known_fields(given, kind))
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
def decoder_of(kind: type[R]) -> msgspec.json.Decoder[R]:
    """Return the decoder of a type of requests."""
    return msgspec.json.Decoder(kind)


def decode_part(data: bytes | msgspec.Raw, kind: type[R], path: str) -> R:
    """Return an object in a request. Raises RequestError, and Unsupported as `known_fields`.

    path: that of the object in the request.
    """
    decoder = decoder_of(kind)
    with suppress(msgspec.ValidationError):
        return decoder.decode(data)
    try:
        return decoder.decode(known_fields(data, kind, path))
    except msgspec.ValidationError as error:
        raise pipeline.mistyped(error, path) from None


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
