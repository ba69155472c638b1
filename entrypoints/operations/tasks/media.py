"""Requests and results of sound and images: transcription, speech and image generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

from ostro.core.messages.target import ModelTarget
from ostro.core.tasks import ImageProgress, TokenLogprob
from ostro.entrypoints.operations.requests.model_body import TARGET

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_QUALITY = 100
"""The highest and the default quality of jpeg and webp."""


class TranscriptionRequest(ModelTarget, kw_only=True):
    """The options of a transcription; the audio is passed beside it. None: the model's default.

    task: "translate" is a transcription in English. languages: those that detection chooses from.
    keywords: words that the audio may contain. words: with the times of words. logprobs: with those
    of the tokens.
    """

    task: Literal["transcribe", "translate"] = "transcribe"
    language: str | None = None
    languages: Sequence[str] | None = None
    keywords: Sequence[str] | None = None
    prompt: str | None = None
    temperature: float | None = None
    words: bool = False
    logprobs: bool = False


class SpeechRequest(ModelTarget, kw_only=True):
    """A text to speak, and the format of the audio file. None: the model's default.

    seed: the same seed gives the same speech. temperature, top_p: as for text. guidance: the scale
    of classifier-free guidance. max_seconds: limit on the duration.
    """

    text: str
    voice: str | None = None
    format: str = "wav"
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    guidance: float | None = None
    max_seconds: float | None = None


class ImageRequest(ModelTarget, kw_only=True):
    """A request for images; the image to start from is passed beside it. None: the model's default.

    width, height: in pixels. steps: of denoising. guidance: the scale of classifier-free guidance.
    seed: of the first of `n` images, the others count up from it. strength: the share of the steps
    that run on the image to start from, 0..1; 1 ignores it. previews: of each image, at most.
    format, quality (0..100, without effect on png): of the files.
    """

    prompt: str
    n: int | None = None
    width: int | None = None
    height: int | None = None
    steps: int | None = None
    guidance: float | None = None
    seed: int | None = None
    strength: float | None = None
    previews: int = 0
    format: Literal["png", "jpeg", "webp"] = "png"
    quality: int = MAX_QUALITY


def options_of(request: ModelTarget, *others: str) -> dict[str, Any]:
    """Return the options of a pipeline: the stated fields of a request, but its target and others.

    others: names of fields.
    """
    names = [name for name in request.__struct_fields__ if name not in (*TARGET, *others)]
    values = {name: getattr(request, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


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

    images: files in the request's format. sizes: (width, height) of each.
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
    options = {} if request.format == "png" else {"quality": request.quality}
    file = BytesIO()
    image.save(file, format=request.format.upper(), **options)
    return file.getvalue()
