"""Files and standard input as parts of a user message."""

from __future__ import annotations

import mimetypes
import os
import re
import select
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostro.core.errors import Unsupported, UsageError

if TYPE_CHECKING:
    from ostro.core.pipeline import ServedModel

MAX_BYTES = 16 << 20
"""Limit on the size of a text."""

PATIENCE = 3.0
"""Time without piped text after which a message says that the program waits, in seconds."""


MEDIA = ("image", "audio", "video")

SIGNATURES: tuple[tuple[str, int, bytes], ...] = (
    ("image", 0, b"\x89PNG\r\n"),
    ("image", 0, b"\xff\xd8\xff"),
    ("image", 0, b"GIF8"),
    ("image", 0, b"II*\0"),
    ("image", 0, b"MM\0*"),
    ("image", 8, b"WEBP"),
    ("image", 4, b"ftypavif"),
    ("image", 4, b"ftypheic"),
    ("audio", 8, b"WAVE"),
    ("audio", 0, b"fLaC"),
    ("audio", 0, b"OggS"),
    ("audio", 0, b"ID3"),
    ("audio", 4, b"ftypM4A"),
    ("video", 8, b"AVI "),
    ("video", 4, b"ftyp"),
    ("video", 0, b"\x1aE\xdf\xa3"),
)
"""Kinds of files by their bytes at an offset; the first match applies."""

TEXT_TYPES = ("image/svg+xml", "video/mp2t")
"""Types that `mimetypes` gives to text: SVG, and .ts, which is TypeScript."""

FILE_NAME = re.compile(r"(?i)\S*(/|\\|\.[a-z]\w*$)\S*")
"""A word that names a file: a path, or a name with a suffix."""


def split_inputs(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The prompt and the files among the positionals of a command.

    A word is a file if the file exists, or if it looks like a path or an address. Raises UsageError
    for several prompts.
    """
    files = [word for word in words if os.path.isfile(expand(word)) or FILE_NAME.fullmatch(word)]
    prompts = [word for word in words if word not in files]
    if len(prompts) > 1:
        first, second = prompts[:2]
        raise UsageError(
            f"expected one prompt, got {first[:80]!r} and {second[:80]!r}, which are not files; "
            "put the prompt in quotes"
        )
    return (prompts[0] if prompts else None), files


def expand(word: str) -> str:
    """A path with `~` expanded."""
    return os.path.expanduser(word)


def kind_of(file: str) -> str:
    """image, audio, video or text: by the first bytes of a file, else by its name."""
    try:
        with open(expand(file), "rb") as stream:
            head = stream.read(16)
    except (OSError, ValueError):  # an address, or a file that the caller reports
        head = b""
    for kind, offset, signature in SIGNATURES:
        if head.startswith(signature, offset):
            return kind
    known = mimetypes.guess_type(file)[0] or "text"
    kind = known.partition("/")[0]
    return kind if kind in MEDIA and known not in TEXT_TYPES else "text"


def read_attachment(file: str, kind: str | None = None) -> dict[str, Any]:
    """The part of a message for a file: {"type": "image", "image": path}, or its text.

    `kind` is image, audio, video or text; None determines it (`kind_of`). Raises UsageError for a
    file that cannot be read, and for one that is neither media nor UTF-8 text.
    """
    path = Path(file).expanduser()
    if (kind := kind or kind_of(file)) in MEDIA:
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
    # In a locale that is not UTF-8, the name has lone surrogates in the place of its bytes.
    name = path.name.encode(errors="surrogateescape").decode(errors="replace")
    return {"type": "text", "text": f"File {name}:\n\n{decode(data, file).strip()}"}


def check_media(model: ServedModel, parts: Iterable[Mapping[str, Any]]) -> None:
    """Raise Unsupported for media and a text model."""
    media = [part["type"] for part in parts if part["type"] != "text"]
    if media and model.architecture.inputs is None:
        raise Unsupported(
            f"{model.name} accepts text only, not {media[0]}; `ostro models PATTERN` shows what "
            "other models accept"
        )


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
