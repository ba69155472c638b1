"""Media in the messages of a conversation: found, counted, and replaced by placeholders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ostro.core.errors import RequestError
from ostro.core.messages.text_requests import MediaPart

MAX_MEDIA = 64
"""Media in one request."""

KINDS = ("image", "video", "audio")


def split_media(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], list[MediaPart]]:
    """The messages with {"type": KIND} in the place of each medium, and the media in order.

    A part of a message is {"type": "image", "image": ...} (or with path or url; likewise video and
    audio), or one of image_url, input_image, audio_url, video_url and input_audio as in OpenAI's
    API. Raises RequestError for a part that holds no medium, and for more than `MAX_MEDIA`.
    """
    plain, media = list[Mapping[str, Any]](), list[MediaPart]()
    for i, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, list):
            plain.append(message)
            continue
        parts = []
        for part in content:
            medium = read_medium(part, f"messages[{i}].content")
            parts.append(part if medium is None else {"type": medium.kind})
            media += [] if medium is None else [medium]
        plain.append({**message, "content": parts})
    check_count(media)
    return plain, media


def read_medium(part: Any, where: str) -> MediaPart | None:
    """The medium in one part of a message; None for a part of text or of an unknown type."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str) or kind == "text":
        return None
    plain = kind.removesuffix("_url").removeprefix("input_")
    if plain not in KINDS:
        return None
    value = None
    if kind == "input_audio":
        audio = part.get("input_audio")
        data = audio.get("data") if isinstance(audio, Mapping) else None
        value = f"data:;base64,{data}" if isinstance(data, str) else None
    else:
        names = (kind, plain, f"{plain}_url", "path", "url", "data")
        value = next((part[name] for name in names if part.get(name) is not None), None)
        value = value.get("url") if isinstance(value, Mapping) else value
    if value is None:
        raise RequestError(f"{where}: a part of type {kind!r:.40} holds no {plain}", param=where)
    return MediaPart(plain, value)


def check_count(media: Sequence[Any]) -> None:
    """Raise RequestError for more media than one request may have."""
    if len(media) > MAX_MEDIA:
        raise RequestError(
            f"{len(media)} media in one request; at most {MAX_MEDIA} are allowed", param="messages"
        )
