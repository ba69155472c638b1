"""Requests and results of sound and images: transcription, speech and image generation."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from ostro.core.errors import RequestError, Unsupported
from ostro.core.messages.target import ModelTarget
from ostro.core.tasks import ImageProgress, TokenLogprob
from ostro.entrypoints.operations.requests.model_body import ModelBody

if TYPE_CHECKING:
    from PIL.Image import Image

SPEEDS = (0.25, 4.0)
IMAGE_FORMATS = ("png", "jpeg", "webp")
MAX_LEVEL = 100
"""The highest and the default `output_compression`, the quality of jpeg and webp."""
MAX_PREVIEWS = 50
TRANSCRIPT_FORMATS = ("json", "verbose_json", "text", "srt", "vtt")


class TranscriptionRequest(ModelBody, kw_only=True):
    """The options of a transcription or a translation; the audio is passed beside them.

    languages: those that detection chooses from. keywords: words that the audio may contain.
    """

    unsupported: ClassVar[Mapping[str, str]] = {
        "known_speaker_names": "recognition of speakers; leave it out",
        "known_speaker_references": "recognition of speakers; leave it out",
    }

    language: str | None = None
    languages: list[str] | None = None
    keywords: list[str] | None = None
    prompt: str | None = None
    response_format: str = "json"
    temperature: float | None = None
    stream: bool = False
    include: list[Literal["logprobs"]] | None = None
    timestamp_granularities: list[Literal["word", "segment"]] | None = None
    chunking_strategy: str | dict[str, Any] | None = None


class VoiceId(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A voice, selected by its name as an id."""

    id: str


class SpeechRequest(ModelBody, kw_only=True):
    """A text to speak."""

    extensions: ClassVar[frozenset[str]] = ModelBody.extensions | frozenset(
        ("seed", "temperature", "top_p", "guidance", "max_seconds")
    )

    input: str
    voice: str | VoiceId | None = None
    instructions: str | None = None
    response_format: str = "mp3"
    speed: float = 1.0
    stream_format: Literal["audio", "sse"] = "audio"
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    guidance: float | None = None
    max_seconds: float | None = None


class ImageRequest(ModelBody, kw_only=True):
    """A request for images."""

    accepted: ClassVar[Mapping[str, str]] = {"moderation": "the server does not moderate"}
    echoed: ClassVar[Mapping[str, str]] = {
        "background": "images are opaque",
        "quality": "`steps` and `size` determine the quality",
        "safety_identifier": "the server detects no abuse",
        "user": "as `safety_identifier`",
    }
    extensions: ClassVar[frozenset[str]] = ModelBody.extensions | frozenset(
        ("steps", "guidance", "seed", "progress")
    )
    unsupported: ClassVar[Mapping[str, str]] = {
        "style": "a style besides the prompt; describe it in the prompt",
        "complexity": "an effort of planning; use steps",
        "frame_count": "output_format gif; use png, jpeg or webp",
        "frame_duration_ms": "output_format gif; use png, jpeg or webp",
        "svg": "output_format svg; use png, jpeg or webp",
    }

    prompt: str
    n: int | None = None
    size: str | None = None
    quality: Literal["auto", "low", "medium", "high", "xhigh", "max", "standard", "hd"] = "auto"
    background: Literal["auto", "opaque", "transparent"] = "auto"
    moderation: Literal["auto", "low"] = "auto"
    response_format: Literal["b64_json", "url"] = "b64_json"
    output_format: Literal["png", "jpeg", "webp", "gif", "svg"] = "png"
    output_compression: int | None = None
    stream: bool = False
    partial_images: int = 0
    safety_identifier: str | None = None
    steps: int | None = None
    guidance: float | None = None
    seed: int | None = None
    progress: bool = False


class ImageEditRequest(ImageRequest, kw_only=True):
    """A request for images that begin as a given one; the image is passed beside it.

    strength: the share of the denoising steps that run on the image, 0..1; 1 ignores the image.
    """

    extensions: ClassVar[frozenset[str]] = ImageRequest.extensions | {"strength"}
    unsupported: ClassVar[Mapping[str, str]] = {
        **ImageRequest.unsupported,
        "mask": "inpainting; send the image alone",
        "markup": "a drawing on the image; send the image alone",
        "input_fidelity": "a level of fidelity; use strength",
    }

    strength: float | None = None


class ImageVariationRequest(ModelBody, kw_only=True):
    """A request for variations of an image."""

    n: int | None = None
    size: str | None = None
    response_format: Literal["b64_json", "url"] = "b64_json"


@dataclass(frozen=True, kw_only=True)
class Speech:
    """Spoken text: an encoded sound of `rate` samples per second, one channel.

    prompt_tokens: of the text. output_tokens: the frames that the model generated.
    """

    data: bytes
    rate: int
    prompt_tokens: int
    output_tokens: int
    generations: list[str] | None


@dataclass(frozen=True, kw_only=True)
class ImageEvent:
    """Progress of an image generation, with previews or, if `final`, the images.

    images: encoded as in the request's `output_format`. sizes: (width, height) of each.
    prompt_tokens, image_tokens: of the prompt and the initial image. output_tokens: of each image.
    """

    model: str
    done: int
    total: int
    final: bool
    images: list[bytes]
    sizes: list[tuple[int, int]]
    prompt_tokens: int
    image_tokens: int
    output_tokens: int
    generations: list[str] | None


@dataclass(frozen=True, kw_only=True)
class TranscriptEvent:
    """The next piece of a transcript, or at its end all of it, with the adapters' generations.

    logprobs: those of the tokens, if requested. language: a code ("en").
    audio_tokens, prompt_tokens, output_tokens: counts of the whole, in the last event.
    """

    text: str
    final: bool = False
    logprobs: Sequence[TokenLogprob] = ()
    language: str = ""
    audio_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    generations: list[str] | None = None


def transcription_options(request: TranscriptionRequest, task: str) -> dict[str, Any]:
    """The pipeline's options.

    Raises RequestError for fields that do not go together, Unsupported for values without effect.
    """
    check_transcript_format(request)
    if request.chunking_strategy not in (None, "auto"):
        raise Unsupported(
            "chunking_strategy: only auto is supported; the audio is cut into windows",
            param="chunking_strategy",
        )
    if request.language and request.languages:
        raise RequestError("give either language or languages", param="languages")
    names = ("language", "languages", "keywords", "prompt", "temperature")
    return {
        "task": task,
        "logprobs": bool(request.include),
        "words": "word" in (request.timestamp_granularities or ()),
        **stated(request, *names),
    }


def check_transcript_format(request: TranscriptionRequest) -> None:
    """Raise RequestError or Unsupported for a format that the transcript cannot have."""
    format = request.response_format
    if format == "diarized_json":
        raise Unsupported(
            "response_format: diarized_json is not supported; use verbose_json",
            param="response_format",
        )
    if format not in TRANSCRIPT_FORMATS:
        raise RequestError(
            f"unknown response_format {format!r:.40}; expected one of "
            f"{', '.join(TRANSCRIPT_FORMATS)}",
            param="response_format",
        )
    if request.stream and format not in ("json", "text"):
        raise RequestError(
            f"response_format: {format} cannot be streamed; use json", param="response_format"
        )
    if request.include and format != "json":
        raise RequestError("include: logprobs requires response_format json", param="include")
    if request.timestamp_granularities and format != "verbose_json":
        raise RequestError(
            "timestamp_granularities requires response_format verbose_json",
            param="timestamp_granularities",
        )


def speech_options(request: SpeechRequest) -> dict[str, Any]:
    """The pipeline's options.

    Raises RequestError for values out of range, Unsupported for fields without effect.
    """
    slow, fast = SPEEDS
    if not slow <= request.speed <= fast:
        raise RequestError(f"speed={request.speed} is not within {slow:g}..{fast:g}", param="speed")
    if request.speed != 1:
        raise Unsupported("speed: only 1 is supported", param="speed")
    if request.instructions:
        raise Unsupported(
            "instructions is not supported; the voice and the text determine the speech",
            param="instructions",
        )
    voice = request.voice.id if isinstance(request.voice, VoiceId) else request.voice
    names = ("seed", "temperature", "top_p", "guidance", "max_seconds")
    return {"voice": voice, **{name: getattr(request, name) for name in names}}


def image_options(request: ImageRequest) -> dict[str, Any]:
    """The pipeline's options.

    Raises RequestError for values out of range, Unsupported for values without effect.
    """
    check_image_format(request)
    check_image_stream(request)
    options = stated(request, "n", "steps", "guidance", "seed")
    options["previews"] = request.partial_images
    if isinstance(request, ImageEditRequest):
        options |= stated(request, "strength")
    if request.size not in (None, "auto"):
        width, _, height = request.size.partition("x")
        if not (width.isdigit() and height.isdigit() and len(request.size) < 12):
            raise RequestError(
                f"size={request.size!r:.40}: expected WIDTHxHEIGHT, such as 1024x1024",
                param="size",
            )
        options |= {"width": int(width), "height": int(height)}
    return options


def check_image_format(request: ImageRequest) -> None:
    """Raise RequestError or Unsupported for a format that the images cannot have."""
    format, level = request.output_format, request.output_compression
    if format not in IMAGE_FORMATS:
        known = ", ".join(IMAGE_FORMATS)
        raise Unsupported(
            f"output_format: {format} is not supported; use {known}", param="output_format"
        )
    if request.background == "transparent":
        raise Unsupported(
            "background: transparent is not supported; use opaque or auto", param="background"
        )
    if level is not None and not 0 <= level <= MAX_LEVEL:
        raise RequestError(
            f"output_compression={level} is not within 0..{MAX_LEVEL}", param="output_compression"
        )
    if level is not None and format == "png":
        raise RequestError(
            "output_compression has no effect on png; use output_format jpeg or webp",
            param="output_compression",
        )


def check_image_stream(request: ImageRequest) -> None:
    """Raise RequestError for events without a stream, Unsupported for URLs in a stream."""
    if not 0 <= request.partial_images <= MAX_PREVIEWS:
        raise RequestError(
            f"partial_images={request.partial_images} is not within 0..{MAX_PREVIEWS}",
            param="partial_images",
        )
    for name in ("partial_images", "progress"):
        if getattr(request, name) and not request.stream:
            raise RequestError(f"{name} requires stream", param=name)
    if request.stream and request.response_format == "url":
        raise Unsupported(
            "response_format: url is not supported with stream; use b64_json",
            param="response_format",
        )


def stated(request: ModelTarget, *names: str) -> dict[str, Any]:
    """The fields of a request that are not None."""
    values: Mapping[str, Any] = {name: getattr(request, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def image_event(model: str, step: ImageProgress, request: ImageRequest) -> ImageEvent:
    """The event of a pipeline's progress."""
    return ImageEvent(
        model=model,
        done=step.done,
        total=step.total,
        final=step.final,
        images=[encode_image(image, request) for image in step.images],
        sizes=[image.size for image in step.images],
        prompt_tokens=step.usage.text,
        image_tokens=step.usage.image,
        output_tokens=step.usage.output,
        generations=step.generations,
    )


def encode_image(image: Image, request: ImageRequest) -> bytes:
    """The file of a PIL image, in the format and quality of a request."""
    level = MAX_LEVEL if request.output_compression is None else request.output_compression
    options = {} if request.output_format == "png" else {"quality": level}
    file = BytesIO()
    image.save(file, format=request.output_format.upper(), **options)
    return file.getvalue()


def base64_text(data: bytes) -> str:
    """Bytes as base64."""
    return base64.b64encode(data).decode()
