"""Media in messages from Python and the command line: files, addresses, bytes, arrays, images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostro.core.errors import RequestError, UsageError
from ostro.core.media.inputs import Inputs
from ostro.core.media.process import MediaSource
from ostro.core.media.process import make_item as decode_item
from ostro.core.messages.prompt import Item
from ostro.core.messages.text_requests import MediaPart

if TYPE_CHECKING:
    import numpy as np

ARRAYS = {
    "image": "uint8 [height, width, 3]",
    "video": "uint8 [frames, height, width, 3]",
    "audio": "float32 [n], in -1..1",
}
"""Arrays of each kind."""


def read_medium(part: Any, where: str) -> MediaPart | None:
    """Return the medium in one part of a message; None for a part of OpenAI's API.

    A part is {"type": "image", "image": X}, or with `path`, `url` or `data` in place of `image`;
    likewise video and audio. Raises RequestError for a part that holds no medium.
    """
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in ARRAYS:
        return None
    names = (kind, f"{kind}_url", "path", "url", "data")
    value = next((part[name] for name in names if part.get(name) is not None), None)
    if value is None:
        raise RequestError(f"{where}: a part of type {kind!r} holds no {kind}", param=where)
    return MediaPart(kind, value)


def make_item(medium: MediaPart, inputs: Inputs) -> Item:
    """Return the item of a medium: bytes of a file, a path, an address, a PIL image or an array.

    Raises RequestError for a malformed medium, UsageError for a file that cannot be read.
    """
    import numpy as np

    value = medium.value
    if hasattr(value, "convert"):  # a PIL image
        from PIL import ImageOps

        value = np.asarray(ImageOps.exif_transpose(value).convert("RGB"))
    if not isinstance(value, np.ndarray):
        return decode_item(inputs, MediaSource(medium.kind, read(value)))
    check_array(medium.kind, value)
    if medium.kind == "image":
        return inputs.image(value)
    if medium.kind == "audio":
        return inputs.audio(value.astype(np.float32))
    return inputs.video(value, 1.0)


def check_array(kind: str, value: np.ndarray[Any, Any]) -> None:
    """Raise RequestError for an array of the wrong type or shape for its kind."""
    if kind == "audio":
        good = value.ndim == 1 and value.dtype.kind == "f"
    else:
        good = value.ndim == (3 if kind == "image" else 4) and value.shape[-1] == 3
        good = good and value.dtype == "uint8"
    if not (good and value.size):
        raise RequestError(
            f"{kind}: expected an array {ARRAYS[kind]}, got {value.dtype} {list(value.shape)}",
            param="messages",
        )


def read(value: Any) -> bytes:
    """Return the bytes of a path or an address; bytes are returned unchanged."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str) and value.partition(":")[0] in ("data", "http", "https"):
        from ostro.pipelines import fetch_all

        return fetch_all([value])[0]
    try:
        return Path(value).read_bytes()
    except (OSError, TypeError, ValueError) as error:
        raise UsageError(f"{str(value)[:200]}: {getattr(error, 'strerror', error)}") from None
