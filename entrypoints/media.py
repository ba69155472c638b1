"""Media in the messages that Python and the command line are given: files, addresses, arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostro.core.errors import RequestError, UsageError
from ostro.core.media import Inputs, Item
from ostro.core.media.worker import MediaSource, check_count, make_item

if TYPE_CHECKING:
    import numpy as np

KINDS = ("image", "video", "audio")
ARRAYS = {
    "image": "uint8 [height, width, 3]",
    "video": "uint8 [frames, height, width, 3]",
    "audio": "float32 [n], in -1..1",
}
"""What an array of a kind is like."""


@dataclass(frozen=True)
class Given:
    """A medium as it was given: bytes of a file, a path or address, a PIL image, or an array."""

    kind: str
    value: Any


def separate(messages: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Given]]:
    """Messages as templates take them, and their media in order.

    A part is {"type": "image", "image": ...} (or path, url), or one of OpenAI's image_url,
    audio_url, video_url, input_audio. Raises RequestError for a part that holds nothing.
    """
    turns, media = list[Mapping[str, Any]](), list[Given]()
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, list):
            turns.append(message)
            continue
        parts = []
        for part in content:
            found = medium_of(part)
            parts.append(part if found is None else {"type": found.kind})
            media += [] if found is None else [found]
        turns.append({**message, "content": parts})
    check_count(media)
    return turns, media


def medium_of(part: Any) -> Given | None:
    """The medium of a message's part, None for one of text."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str) or kind == "text":
        return None
    plain = kind.removesuffix("_url").removeprefix("input_")
    if plain not in KINDS:
        return None
    if kind == "input_audio":
        return Given("audio", f"data:;base64,{part.get('input_audio', {}).get('data', '')}")
    for name in (kind, plain, f"{plain}_url", "path", "url", "data"):
        value = part.get(name)
        if isinstance(value, Mapping):
            value = value.get("url")
        if value is not None:
            return Given(plain, value)
    raise RequestError(f"a part of type {kind!r} holds no {plain}", param="messages")


def item_of(given: Given, inputs: Inputs) -> Item:
    """An item of a medium. Raises RequestError or UsageError for what cannot be read."""
    import numpy as np

    value = given.value
    if hasattr(value, "convert"):  # a PIL image
        from PIL import ImageOps

        value = np.asarray(ImageOps.exif_transpose(value).convert("RGB"))
    if not isinstance(value, np.ndarray):
        return make_item(inputs, MediaSource(given.kind, read(value)))
    check_array(given.kind, value)
    if given.kind == "image":
        return inputs.image(value)
    if given.kind == "audio":
        return inputs.audio(value.astype(np.float32))
    return inputs.video(value, 1.0)


def check_array(kind: str, value: np.ndarray[Any, Any]) -> None:
    """Raise RequestError for an array that is no medium of its kind."""
    if kind == "audio":
        good = value.ndim == 1 and value.dtype.kind == "f"
    else:
        good = value.ndim == (3 if kind == "image" else 4) and value.shape[-1] == 3
        good = good and value.dtype == "uint8"
    if not (good and value.size):
        raise RequestError(
            f"an array of {kind} is {ARRAYS[kind]}, not {value.dtype} {list(value.shape)}",
            param="messages",
        )


def read(value: Any) -> bytes:
    """The bytes of a file, of an address, or as they are."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str) and value.partition(":")[0] in ("data", "http", "https"):
        from ostro.core.media.fetch import fetch

        return fetch(value)
    try:
        return Path(value).read_bytes()
    except (OSError, TypeError, ValueError) as error:
        raise UsageError(f"{str(value)[:200]}: {getattr(error, 'strerror', error)}") from None
