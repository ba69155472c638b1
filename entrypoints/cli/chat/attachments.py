"""Files and standard input as parts of a user message."""

from __future__ import annotations

import mimetypes
import os
import select
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ostro.core.errors import UsageError

MAX_BYTES = 16 << 20
"""Limit on the size of a text."""

PATIENCE = 3.0
"""Time without piped text after which a message says that the program waits, in seconds."""


def read_attachment(file: str, kind: str | None = None) -> dict[str, Any]:
    """The part of a message for a file: {"type": "image", "image": path}, or its text.

    `kind` is image, audio, video or text; None determines it from the name of the file. Raises
    UsageError for a file that cannot be read, and for one that is neither media nor UTF-8 text.
    """
    path = Path(file).expanduser()
    if kind is None:
        known = mimetypes.guess_type(path.name)[0] or "text"
        kind = known.partition("/")[0]
    if kind in ("image", "audio", "video"):
        if file.partition(":")[0] in ("http", "https", "data"):
            return {"type": kind, kind: file}
        if not path.is_file():
            raise UsageError(f"{file:.200}: No such file")
        return {"type": kind, kind: str(path.absolute())}
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file:.200}: {getattr(error, 'strerror', None) or error}") from None
    return {"type": "text", "text": f"File {path.name}:\n\n{decode(data, file).strip()}"}


def decode(data: bytes, name: str) -> str:
    """Decode UTF-8 text. Raises UsageError for other bytes and for more than `MAX_BYTES`."""
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name:.200}: more than {MAX_BYTES >> 20} MiB of text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UsageError(f"{name:.200}: neither UTF-8 text nor an image, audio or video file")
    return text


def read_piped() -> str | None:
    """The text of standard input if it is a pipe or a file; None for a terminal or no input.

    Raises UsageError unless it is UTF-8 text.
    """
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or replaced by an object
        return None
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return None
    with suppress(OSError):  # Windows: select accepts sockets only
        if not select.select([sys.stdin], [], [], PATIENCE)[0]:
            print(
                "ostro: reading standard input until its end; </dev/null skips it", file=sys.stderr
            )
    return decode(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input").strip() or None
