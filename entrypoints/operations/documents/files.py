"""Files that clients upload: their descriptions are documents, their contents are blobs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from math import inf
from typing import Annotated, Literal

import msgspec

from ostro.core.errors import RequestError, StoreConflict
from ostro.core.store import new_id
from ostro.entrypoints.operations.access.caller import ANYONE, Caller
from ostro.entrypoints.operations.documents.state import Page, State, not_found, read_chunks

KIND, PREFIX = "file", "file-"
MAX_FILE = 512 << 20
"""Limit on the bytes of a file that is uploaded in one request."""
MAX_FILENAME = 512
"""Limit on the characters of a file's name."""
MAX_PAGE = 10_000
"""Limit on the files of a page; also the default."""
Purpose = Literal["assistants", "batch", "evals", "fine-tune", "user_data", "vision"]
"""What a client may upload files for, as in OpenAI's API."""


class ExpiresAfter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of a file, in seconds after its creation: one hour to 30 days."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, msgspec.Meta(ge=3600, le=2_592_000)]


class FileRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The description of a file to upload."""

    filename: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_FILENAME)]
    purpose: Purpose
    expires_after: ExpiresAfter | None = None


class FileListRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a list of files. `after` is the id of the last file of the page before."""

    after: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)] = MAX_PAGE
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A stored file. Times are in seconds since 1970; `nbytes` is the size of its content."""

    id: str
    filename: str
    purpose: str
    nbytes: int
    created: int
    expires: int | None = None


@dataclass(frozen=True)
class FilePage:
    """A part of a list of files, and whether more follow."""

    files: list[File]
    has_more: bool


def seconds_of(expiry: ExpiresAfter | None) -> int | None:
    """Return the lifetime of a file in seconds, None without one."""
    return None if expiry is None else expiry.seconds


class Files:
    """The files of callers. Methods raise as `State`; a caller finds its own files only."""

    def __init__(self, state: State) -> None:
        self.state = state

    async def create(
        self,
        request: FileRequest,
        chunks: AsyncIterator[bytes],
        caller: Caller = ANYONE,
        *,
        limit: int = MAX_FILE,
    ) -> File:
        """Store a file of at most `limit` bytes. Raises RequestError for a longer one."""
        seconds = seconds_of(request.expires_after)
        return await self.write(
            request.filename, request.purpose, chunks, caller, lifetime=seconds, limit=limit
        )

    async def write(
        self,
        filename: str,
        purpose: str,
        chunks: AsyncIterator[bytes],
        caller: Caller,
        *,
        lifetime: float | None = None,
        limit: int = MAX_FILE,
        id: str | None = None,
        limited: bool = True,
    ) -> File:
        """Store a file of any purpose. lifetime: seconds, at most the retention time.

        id: the id of the file; if a file has it already, that one is returned. limited: as of
        `State.put`.
        """
        room = await self.state.room(caller.name) if limited else inf
        async with self.state.writing_blob() as blob:
            async for chunk in chunks:
                if blob.size + len(chunk) > limit:
                    raise RequestError(f"the file exceeds {limit} bytes", param="file")
                if blob.size + len(chunk) > room:
                    await self.state.require_room(caller.name, 1, blob.size + len(chunk))
                await blob.write(chunk)
        end = self.state.lifetime(lifetime)
        created = int(time.time())
        file = File(
            id=id or new_id(PREFIX),
            filename=filename,
            purpose=purpose,
            nbytes=blob.size,
            created=created,
            expires=None if end is None else created + int(end),
        )
        try:
            await self.state.put(
                caller.name,
                KIND,
                file.id,
                file,
                expected=0,
                lifetime=lifetime,
                blob=blob,
                limited=limited,
            )
        except StoreConflict:
            await self.state.discard_blob(blob)
            return await self.get(file.id, caller)
        except BaseException:
            await self.state.discard_blob(blob)
            raise
        return file

    async def list(self, request: FileListRequest, caller: Caller = ANYONE) -> FilePage:
        """Return a page of files. Raises RequestError for an invalid cursor."""
        found: list[File] = []
        after, more = request.after, True
        while more and len(found) <= request.limit:
            page: Page[File] = await self.state.list(
                caller.name,
                KIND,
                File,
                after=after,
                limit=request.limit + 1 - len(found),
                descending=request.order == "desc",
            )
            files = [each.value for each in page.items]
            found += [each for each in files if request.purpose in (None, each.purpose)]
            more = page.has_more
            after = files[-1].id if files else after
        return FilePage(found[: request.limit], len(found) > request.limit)

    async def get(self, id: str, caller: Caller = ANYONE) -> File:
        """Return a file."""
        return (await self.state.get(caller.name, KIND, id, File)).value

    async def content(self, id: str, caller: Caller = ANYONE) -> tuple[File, AsyncIterator[bytes]]:
        """Return a file with its bytes. Raises DocumentNotFound before the first byte."""
        found = await self.state.get(caller.name, KIND, id, File)
        return found.value, read_chunks(await self.state.open_blob(found.document))

    async def read(self, id: str, limit: int, caller: Caller = ANYONE) -> tuple[str, bytes]:
        """Return the name and the content of a file, which the request holds.

        Raises RequestError beyond `limit` bytes, and as `HeldDocuments.add`.
        """
        file = await self.get(id, caller)
        if file.nbytes > limit:
            raise RequestError(
                f"{id} has {file.nbytes} bytes; at most {limit} fit", param="file_id"
            )
        self.state.held.add(file.nbytes)
        _, chunks = await self.content(id, caller)
        return file.filename, b"".join([chunk async for chunk in chunks])

    async def delete(self, id: str, caller: Caller = ANYONE) -> None:
        """Delete a file with its content."""
        if not await self.state.delete(caller.name, KIND, id):
            raise not_found(id)
