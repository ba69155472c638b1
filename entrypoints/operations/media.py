"""Requests and results of sound and images: transcription, speech and image generation."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, ClassVar, Literal

from ostro.core.errors import RequestError, Unsupported
from ostro.core.pipeline import ModelTarget

SPEEDS = (0.25, 4.0)
TRANSCRIPT_FORMATS = ("json", "verbose_json", "text", "srt", "vtt")


class TranscriptionRequest(ModelTarget, kw_only=True):
    """The options of a transcription or a translation; the audio is passed beside them."""

    language: str | None = None
    prompt: str | None = None
    response_format: str = "json"
    temperature: float | None = None
    stream: bool = False


class SpeechRequest(ModelTarget, kw_only=True):
    """A text to speak."""

    extensions: ClassVar[frozenset[str]] = ModelTarget.extensions | frozenset(
        ("seed", "temperature", "top_p", "guidance", "max_seconds")
    )

    input: str
    voice: str | None = None
    instructions: str | None = None
    response_format: str = "mp3"
    speed: float = 1.0
    stream_format: Literal["audio", "sse"] = "audio"
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    guidance: float | None = None
    max_seconds: float | None = None


class ImageRequest(ModelTarget, kw_only=True):
    """A request for images."""

    extensions: ClassVar[frozenset[str]] = ModelTarget.extensions | frozenset(
        ("steps", "guidance", "seed")
    )

    prompt: str
    n: int | None = None
    size: str | None = None
    response_format: Literal["b64_json", "url"] | None = None
    output_format: Literal["png", "jpeg", "webp"] = "png"
    stream: bool | None = None
    partial_images: int | None = None
    steps: int | None = None
    guidance: float | None = None
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Speech:
    """Spoken text: an encoded sound of `rate` samples per second, one channel."""

    data: bytes
    rate: int
    generations: list[str] | None


@dataclass(frozen=True, kw_only=True)
class Images:
    """Generated images, encoded as in the request's `output_format`."""

    model: str
    images: list[bytes]
    generations: list[str] | None


@dataclass(frozen=True, kw_only=True)
class ImageEvent:
    """Progress of an image generation, with previews or, if `final`, the images, encoded."""

    done: int
    total: int
    final: bool
    images: list[bytes]
    generations: list[str] | None


@dataclass(frozen=True, kw_only=True)
class TranscriptEvent:
    """The next piece of a transcript, or at its end all of it, with the adapters' generations."""

    text: str
    final: bool = False
    generations: list[str] | None = None


def transcription_options(request: TranscriptionRequest, task: str) -> dict[str, Any]:
    """The pipeline's options. Raises RequestError for an unknown response_format."""
    if request.response_format not in TRANSCRIPT_FORMATS:
        raise RequestError(
            f"unknown response_format {request.response_format!r:.40}; expected one of "
            f"{', '.join(TRANSCRIPT_FORMATS)}",
            param="response_format",
        )
    return {"task": task, **stated(request, "language", "prompt", "temperature")}


def speech_options(request: SpeechRequest) -> dict[str, Any]:
    """The pipeline's options.

    Raises RequestError for values out of range, Unsupported for fields without effect.
    """
    slow, fast = SPEEDS
    if not slow <= request.speed <= fast:
        raise RequestError(f"speed={request.speed} is not within {slow:g}..{fast:g}", param="speed")
    if request.speed != 1:
        raise Unsupported("speed: only 1 is supported", param="speed")
    if request.stream_format != "audio":
        raise Unsupported("stream_format: only audio is supported", param="stream_format")
    if request.instructions:
        raise Unsupported("instructions is not supported", param="instructions")
    names = ("voice", "seed", "temperature", "top_p", "guidance", "max_seconds")
    return {name: getattr(request, name) for name in names}


def image_options(request: ImageRequest) -> dict[str, Any]:
    """The pipeline's options. Raises RequestError for a malformed size, Unsupported for URLs."""
    if request.response_format == "url":
        raise Unsupported(
            "response_format: url is not supported, since images are not stored; use b64_json",
            param="response_format",
        )
    options = stated(request, "n", "steps", "guidance", "seed")
    if request.size not in (None, "auto"):
        width, _, height = request.size.partition("x")
        if not (width.isdigit() and height.isdigit() and len(request.size) < 12):
            raise RequestError(
                f"size={request.size!r:.40}: expected WIDTHxHEIGHT, such as 1024x1024",
                param="size",
            )
        options |= {"width": int(width), "height": int(height)}
    return options


def stated(request: ModelTarget, *names: str) -> dict[str, Any]:
    """The fields of a request that are not None."""
    values: Mapping[str, Any] = {name: getattr(request, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def encode_image(image: Any, form: str) -> bytes:
    """The file of a PIL image."""
    file = BytesIO()
    image.save(file, format=form.upper())
    return file.getvalue()


def base64_text(data: bytes) -> str:
    """Bytes as base64."""
    return base64.b64encode(data).decode()
