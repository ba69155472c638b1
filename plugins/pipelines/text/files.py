"""Files in messages: their contents become parts of text, image, audio or video."""

from __future__ import annotations

import asyncio
import base64
import binascii
import mimetypes

from msgspec.structs import replace

from ostro.errors import DocumentNotFound, RequestError, Unsupported
from ostro.pipelines import ChatRequest, ContentPart, FilePart, MediaPart, ReadFile, TextPart
from ostro.plugins.pipelines.fetch import MAX_BYTES

KINDS = ("image", "audio", "video")
TEXT_TYPES = ("image/svg+xml", "video/mp2t")
"""Types that `mimetypes` gives to text: SVG, and .ts, which is TypeScript."""


async def attach_files(request: ChatRequest, read: ReadFile) -> ChatRequest:
    """The request with the contents of its files in their places.

    `read` returns the name and the bytes of an uploaded file. Raises RequestError for a malformed
    file and for more than `MAX_BYTES` in all files, Unsupported for a file that is neither text nor
    a medium, and what `read` raises.
    """
    parts = (part for message in request.messages for part in message.parts)
    if not any(isinstance(part, FilePart) for part in parts):
        return request
    messages, left = [], MAX_BYTES
    for i, message in enumerate(request.messages):
        content = list[ContentPart]()
        for part in message.parts:
            if isinstance(part, FilePart):
                part, size = await attach(part, f"messages[{i}].content", left, read)
                left -= size
            content.append(part)
        messages.append(replace(message, content=content) if content else message)
    return replace(request, messages=messages)


async def attach(file: FilePart, where: str, limit: int, read: ReadFile) -> tuple[ContentPart, int]:
    """The part for a file of at most `limit` bytes, and its size in bytes."""
    if (file.file_id is None) == (file.file_data is None):
        raise RequestError(f"{where}: a file needs either file_id or file_data", param=where)
    name, kind = file.filename or "", None
    if file.file_id is not None:
        try:
            stored, data = await read(file.file_id, limit)
        except DocumentNotFound as error:
            raise DocumentNotFound(f"{where}: {error}", param=where) from None
        name = name or stored
    else:
        kind, data = await asyncio.to_thread(decode, file.file_data or "", where)
        if len(data) > limit:
            message = f"{where}: the files of a request exceed {MAX_BYTES >> 20} MiB"
            raise RequestError(message, param=where)
    kind = kind or mimetypes.guess_type(name)[0]
    return await asyncio.to_thread(part_of, name, kind, data, where), len(data)


def decode(source: str, where: str) -> tuple[str, bytes]:
    """The MIME type, "" if it is unknown, and the bytes of base64 or of a base64 data URL."""
    head, comma, body = source.rpartition(",")
    if comma and not (head.startswith("data:") and head.endswith(";base64")):
        raise RequestError(f"{where}: file_data is not base64 or a base64 data URL", param=where)
    try:
        data = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(f"{where}: file_data is not base64", param=where) from None
    return head.removeprefix("data:").partition(";")[0].lower(), data


def part_of(name: str, kind: str | None, data: bytes, where: str) -> ContentPart:
    """The part of a message for a file. `kind` is its MIME type, None if it is unknown."""
    if kind == "application/pdf" or data.startswith(b"%PDF-"):
        raise Unsupported(f"{where}: PDF files are not supported; send their text", param=where)
    family = (kind or "").partition("/")[0]
    if family in KINDS and kind not in TEXT_TYPES:
        url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
        return MediaPart(family, url)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unsupported(
            f"{where}: the file {name!r:.80} of type {kind or 'unknown'} is neither UTF-8 text nor "
            "an image, audio or video; state its type in a data URL or by its filename",
            param=where,
        ) from None
    return TextPart(f"File {name}:\n\n{text}" if name else text)
