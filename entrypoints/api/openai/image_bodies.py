"""The JSON and the forms of OpenAI's routes for images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from ostro.core.errors import RequestError, Unsupported
from ostro.core.routes import FORM
from ostro.core.uploaded_file import UploadedFile
from ostro.entrypoints.operations.requests.model_body import ModelBody
from ostro.entrypoints.operations.tasks.media import MAX_QUALITY, ImageRequest

Quality = Literal["low", "medium", "high", "xhigh", "max"]
Format = Literal["png", "jpeg", "webp"]
QUALITIES = {"standard": "medium", "hd": "high"}
"""Today's names of earlier values of `quality`."""
MAX_PREVIEWS = 50


class ImageBody(ModelBody, kw_only=True):
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

    def to_request(self) -> ImageRequest:
        """Return the request of the operation.

        Raises RequestError for values out of range, Unsupported for values without effect.
        """
        check_stream(self)
        width, height = read_size(self.size)
        return ImageRequest(
            prompt=self.prompt,
            n=self.n,
            width=width,
            height=height,
            steps=self.steps,
            guidance=self.guidance,
            seed=self.seed,
            previews=self.partial_images,
            format=read_format(self),
            quality=read_compression(self),
            **self.target,
        )

    @property
    def named_quality(self) -> Quality | Literal["auto"]:
        """The quality by today's name."""
        return QUALITIES.get(self.quality, self.quality)  # type: ignore[return-value]


class ImageEditForm(ImageBody, kw_only=True):
    """The form of an image edit.

    strength: the share of the denoising steps that run on the image, 0..1; 1 ignores the image.
    """

    media_type: ClassVar[str] = FORM
    extensions: ClassVar[frozenset[str]] = ImageBody.extensions | {"strength"}
    unsupported: ClassVar[Mapping[str, str]] = {
        **ImageBody.unsupported,
        "mask": "inpainting; send the image alone",
        "markup": "a drawing on the image; send the image alone",
        "input_fidelity": "a level of fidelity; use strength",
    }

    strength: float | None = None
    image: UploadedFile

    def to_request(self) -> ImageRequest:
        """Return the request of the operation, without the image. Raises as `ImageBody`."""
        request = super().to_request()
        request.strength = self.strength
        return request


class ImageVariationForm(ModelBody, kw_only=True):
    """The form of a variation of an image."""

    media_type: ClassVar[str] = FORM

    n: int | None = None
    size: str | None = None
    response_format: Literal["b64_json", "url"] = "b64_json"
    image: UploadedFile


def read_size(size: str | None) -> tuple[int | None, int | None]:
    """Return the width and the height in pixels. Raises RequestError for another form."""
    if size in (None, "auto"):
        return None, None
    width, _, height = size.partition("x")
    if not (width.isdigit() and height.isdigit() and len(size) < 12):
        raise RequestError(
            f"size={size!r:.40}: expected WIDTHxHEIGHT, such as 1024x1024", param="size"
        )
    return int(width), int(height)


def read_format(body: ImageBody) -> Format:
    """Return the format of the files. Raises Unsupported for one that images cannot have."""
    if body.background == "transparent":
        raise Unsupported(
            "background: transparent is not supported; use opaque or auto", param="background"
        )
    if body.output_format == "gif" or body.output_format == "svg":
        raise Unsupported(
            f"output_format: {body.output_format} is not supported; use png, jpeg, webp",
            param="output_format",
        )
    return body.output_format


def read_compression(body: ImageBody) -> int:
    """Return the quality of the files. Raises RequestError if it is out of range, and for png."""
    level = body.output_compression
    if level is None:
        return MAX_QUALITY
    if not 0 <= level <= MAX_QUALITY:
        raise RequestError(
            f"output_compression={level} is not within 0..{MAX_QUALITY}",
            param="output_compression",
        )
    if body.output_format == "png":
        raise RequestError(
            "output_compression has no effect on png; use output_format jpeg or webp",
            param="output_compression",
        )
    return level


def check_stream(body: ImageBody) -> None:
    """Raise RequestError for events without a stream, Unsupported for URLs in a stream."""
    if not 0 <= body.partial_images <= MAX_PREVIEWS:
        raise RequestError(
            f"partial_images={body.partial_images} is not within 0..{MAX_PREVIEWS}",
            param="partial_images",
        )
    for name in ("partial_images", "progress"):
        if getattr(body, name) and not body.stream:
            raise RequestError(f"{name} requires stream", param=name)
    if body.stream and body.response_format == "url":
        raise Unsupported(
            "response_format: url is not supported with stream; use b64_json",
            param="response_format",
        )
