"""Files in the forms of requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import BinaryIO

CHUNK = 1 << 20
"""Bytes that are read at a time."""


class UploadedFile:
    """A file in a form. It is open until the handler returns.

    filename  as the client states it, "" without one
    size      in bytes
    file      the content, of which nothing is read yet
    """

    def __init__(self, filename: str, size: int, file: BinaryIO) -> None:
        self.filename, self.size, self.file = filename, size, file

    async def read(self) -> bytes:
        """Return the content, and close the file: a large one needs no disk any more."""
        with self.file:
            return await asyncio.to_thread(self.file.read)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the content in parts of at most `CHUNK` bytes."""
        while data := await asyncio.to_thread(self.file.read, CHUNK):
            yield data
