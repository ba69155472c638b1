"""Uploads: files that arrive in parts, in any order, and are joined at the end."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Literal

import msgspec

from ostro.core.errors import DocumentNotFound, RequestError
from ostro.core.store import new_id
from ostro.entrypoints.operations.access.caller import ANYONE, Caller
from ostro.entrypoints.operations.documents.files import (
    MAX_FILENAME,
    ExpiresAfter,
    File,
    Files,
    Purpose,
    seconds_of,
)
from ostro.entrypoints.operations.documents.state import State, read_chunks

KIND, PREFIX, PART_PREFIX = "upload", "upload_", "part_"
MAX_UPLOAD = 8 << 30
"""Limit on the bytes of a file that is uploaded in parts."""
MAX_PART = 64 << 20
"""Limit on the bytes of a part."""
MAX_PARTS = 10_000
"""Limit on the parts of a file."""
SECONDS = 3600
"""Time in which an upload must be completed."""


class UploadRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The description of a file that will arrive in parts. `bytes` is its size."""

    filename: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_FILENAME)]
    purpose: Purpose
    bytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_UPLOAD)]
    mime_type: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    expires_after: ExpiresAfter | None = None


class CompleteUploadRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parts of a file in order, and optionally the MD5 of its content in hexadecimal."""

    part_ids: Annotated[Sequence[str], msgspec.Meta(min_length=1, max_length=MAX_PARTS)]
    md5: Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{32}$")] | None = None


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """An upload of `parts` parts with `received` bytes; `file` is the completed file."""

    id: str
    request: UploadRequest
    created: int
    expires: int
    received: int = 0
    parts: int = 0
    status: Literal["pending", "completed", "cancelled"] = "pending"
    file: File | None = None


class UploadPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an upload."""

    id: str
    upload: str
    created: int


class Uploads:
    """The uploads of callers. Methods raise as `State`; a caller finds its own uploads only."""

    def __init__(self, state: State, files: Files) -> None:
        self.state, self.files = state, files

    async def create(self, request: UploadRequest, caller: Caller = ANYONE) -> Upload:
        """Begin an upload."""
        created, seconds = int(time.time()), int(self.state.lifetime(SECONDS) or SECONDS)
        upload = Upload(
            id=new_id(PREFIX), request=request, created=created, expires=created + seconds
        )
        await self.state.put(caller.name, KIND, upload.id, upload, lifetime=seconds, limited=True)
        return upload

    async def add(
        self, id: str, chunks: AsyncIterator[bytes], caller: Caller = ANYONE
    ) -> UploadPart:
        """Store a part.

        Raises RequestError for an empty or long part, for more bytes than announced, and for more
        parts than `MAX_PARTS`.
        """
        upload = pending((await self.state.get(caller.name, KIND, id, Upload)).value)
        await self.state.room(caller.name)
        limit = min(MAX_PART, upload.request.bytes - upload.received)
        part = UploadPart(id=new_id(PART_PREFIX), upload=id, created=int(time.time()))
        async with self.state.writing_blob() as blob:
            async for chunk in chunks:
                if blob.size + len(chunk) > limit:
                    raise RequestError(f"the part exceeds {limit} bytes", param="data")
                await blob.write(chunk)
            if not blob.size:
                raise RequestError("the part is empty", param="data")

        def receive(upload: Upload) -> Upload:
            received = pending(upload).received + blob.size
            if upload.parts >= MAX_PARTS:
                raise RequestError(f"the upload has {MAX_PARTS} parts, the most that it may have")
            if received > upload.request.bytes:
                raise RequestError(
                    f"the parts have {received} bytes, expected {upload.request.bytes}",
                    param="data",
                )
            return msgspec.structs.replace(upload, received=received, parts=upload.parts + 1)

        try:
            await self.state.change(caller.name, KIND, id, Upload, receive)
            lifetime = max(1.0, upload.expires - time.time())
            await self.state.put(
                caller.name,
                part_kind(id),
                part.id,
                part,
                lifetime=lifetime,
                blob=blob,
                limited=True,
            )
        except BaseException:
            await self.state.discard_blob(blob)
            raise
        return part

    async def complete(
        self, id: str, request: CompleteUploadRequest, caller: Caller = ANYONE
    ) -> Upload:
        """Join the parts to a file. Raises RequestError for wrong parts, size or MD5."""
        upload = pending((await self.state.get(caller.name, KIND, id, Upload)).value)
        if len(set(request.part_ids)) < len(request.part_ids):
            raise RequestError("a part is listed twice", param="part_ids")
        wanted, digest = upload.request, hashlib.md5(usedforsecurity=False)
        file = await self.files.write(
            wanted.filename,
            wanted.purpose,
            self.join(id, request.part_ids, digest, caller),
            caller,
            lifetime=seconds_of(wanted.expires_after),
            limit=wanted.bytes,
            limited=False,  # its parts, which it replaces, are within the limit
        )

        def finish(upload: Upload) -> Upload:
            return msgspec.structs.replace(pending(upload), status="completed", file=file)

        try:
            if file.nbytes != wanted.bytes:
                raise RequestError(
                    f"the parts have {file.nbytes} bytes, expected {wanted.bytes}", param="part_ids"
                )
            if request.md5 is not None and digest.hexdigest() != request.md5.lower():
                raise RequestError(f"the MD5 is {digest.hexdigest()}", param="md5")
            done = await self.state.change(caller.name, KIND, id, Upload, finish)
        except BaseException:
            await self.files.delete(file.id, caller)
            raise
        await self.state.delete(caller.name, part_kind(id))
        return done

    async def join(
        self, id: str, parts: Sequence[str], digest: hashlib._Hash, caller: Caller
    ) -> AsyncIterator[bytes]:
        """Yield the bytes of parts, and add them to a digest."""
        for part in parts:
            try:
                found = await self.state.get(caller.name, part_kind(id), part, UploadPart)
            except DocumentNotFound:
                raise RequestError(
                    f"the upload has no part {part!r:.80}", param="part_ids"
                ) from None
            async for chunk in read_chunks(await self.state.open_blob(found.document)):
                digest.update(chunk)
                yield chunk

    async def cancel(self, id: str, caller: Caller = ANYONE) -> Upload:
        """Cancel an upload and delete its parts."""

        def cancel(upload: Upload) -> Upload:
            return msgspec.structs.replace(pending(upload), status="cancelled")

        cancelled = await self.state.change(caller.name, KIND, id, Upload, cancel)
        await self.state.delete(caller.name, part_kind(id))
        return cancelled


def part_kind(id: str) -> str:
    """Return the kind of the parts of an upload."""
    return f"upload_part/{id}"


def pending(upload: Upload) -> Upload:
    """Return an upload that is pending. Raises RequestError for another one."""
    if upload.status != "pending":
        raise RequestError(f"the upload is {upload.status}")
    return upload
