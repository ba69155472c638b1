"""OpenAI's routes for images: generations and edits, with streams of previews, and variations."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Literal, NoReturn

import msgspec
from msgspec import UNSET, UnsetType

from ostro.core.errors import RequestError, Unsupported
from ostro.core.routes import Route
from ostro.core.uploaded_file import UploadedFile
from ostro.entrypoints.api.openai.image_bodies import (
    Format,
    ImageBody,
    ImageEditForm,
    ImageVariationForm,
    Quality,
    read_format,
)
from ostro.entrypoints.api.openai.types import base64_text, unless_none
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.requests.event_formats import DATA_EVENTS
from ostro.entrypoints.operations.requests.request_context import base_url
from ostro.entrypoints.operations.tasks.media import ImageEvent

MAX_IMAGE = 50 << 20
"""Limit on the bytes of an image in a form."""
URL_SECONDS = 3600.0
"""Time for which the URL of an image is valid, as in OpenAI's API."""


class ImageItem(msgspec.Struct, kw_only=True):
    """An image: its file in base64, or its URL on this server."""

    b64_json: str | UnsetType = UNSET
    url: str | UnsetType = UNSET


class ImageTokens(msgspec.Struct, kw_only=True):
    """Tokens of texts and of images."""

    text_tokens: int
    image_tokens: int


class ImageUsage(msgspec.Struct, kw_only=True):
    """Token counts of a request."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: ImageTokens
    output_tokens_details: ImageTokens


class ImageList(msgspec.Struct, kw_only=True):
    """The generated images."""

    created: int
    model: str
    data: list[ImageItem]
    background: Literal["opaque"]
    output_format: Format
    size: str
    usage: ImageUsage
    quality: Quality | UnsetType = UNSET
    safety_identifier: str | UnsetType = UNSET
    adapter_generations: list[str] | UnsetType = UNSET


class ImageEventHead(msgspec.Struct, kw_only=True):
    """The fields of every event with an image, its file in base64."""

    b64_json: str
    background: Literal["opaque"]
    created_at: int
    output_format: Format
    quality: Quality | Literal["auto"]
    size: str


class ImagePartial(
    ImageEventHead, kw_only=True, tag_field="type", tag="image_generation.partial_image"
):
    """A preview of an image."""

    partial_image_index: int


class ImageCompleted(
    ImageEventHead, kw_only=True, tag_field="type", tag="image_generation.completed"
):
    """A generated image. The usages of the events of a stream add up to that of the request."""

    usage: ImageUsage
    safety_identifier: str | UnsetType = UNSET
    adapter_generations: list[str] | UnsetType = UNSET


class ImageProgress(
    msgspec.Struct, kw_only=True, tag_field="type", tag="image_generation.progress"
):
    """The progress of a request with the field `progress`: `done` of `total` steps."""

    done: int
    total: int


class ImageEditPartial(ImagePartial, kw_only=True, tag="image_edit.partial_image"):
    """A preview of an edited image."""


class ImageEditCompleted(ImageCompleted, kw_only=True, tag="image_edit.completed"):
    """An edited image. The usages of the events of a stream add up to that of the request."""


class ImageEditProgress(ImageProgress, kw_only=True, tag="image_edit.progress"):
    """The progress of a request with the field `progress`: `done` of `total` steps."""


Answer = ImageList | AsyncGenerator[ImagePartial | ImageCompleted | ImageProgress, None]
"""What the routes answer: JSON, or the events of a stream."""


async def generations(operations: Operations, caller: Caller, body: ImageBody) -> Answer:
    """Generate images."""
    return await answer(operations, caller, body)


async def edits(operations: Operations, caller: Caller, form: ImageEditForm) -> Answer:
    """Generate images that begin as a given one."""
    check_size(form.image)
    return await answer(operations, caller, form, await form.image.read())


async def variations(operations: Operations, caller: Caller, form: ImageVariationForm) -> NoReturn:
    """Generate variations of an image: no built-in model does."""
    check_size(form.image)
    admitted = await operations.service.admit(form, "draw", caller)
    raise Unsupported(
        f"{admitted.model} does not generate variations without a prompt; send the image with "
        "a prompt to /v1/images/edits"
    )


async def answer(
    operations: Operations, caller: Caller, body: ImageBody, image: bytes | None = None
) -> Answer:
    """Return the images of a request, or the events of a stream. image: as of `draw`."""
    request = body.to_request()
    if body.response_format == "url":
        check_urls(operations)
    if body.stream:
        return chunks(await operations.draw_events(request, caller, image=image), body)
    drawn = await operations.draw(request, caller, image=image)
    write = partial(image_item, operations, caller, body)
    quality = body.named_quality
    return ImageList(
        created=int(time.time()),
        model=drawn.model,
        data=[await write(data, number) for number, data in enumerate(drawn.images, 1)],
        background="opaque",
        output_format=read_format(body),
        size=size_of(drawn.sizes[0]),
        usage=usage_of(drawn, len(drawn.images)),
        quality=UNSET if quality == "auto" else quality,
        safety_identifier=safety_identifier(body),
        adapter_generations=unless_none(drawn.generations),
    )


def check_size(file: UploadedFile) -> None:
    """Raise RequestError for an image that is too large."""
    if file.size > MAX_IMAGE:
        raise RequestError(f"the file in image exceeds {MAX_IMAGE} bytes", param="image")


def check_urls(operations: Operations) -> None:
    """Raise Unsupported for URLs on a server without a store, and in a batch."""
    if not operations.documents.state.enabled:
        raise Unsupported(
            "response_format: url requires stored files, and this server has no store; use "
            "b64_json, or start the server with --store memory or --store FOLDER",
            param="response_format",
        )
    if base_url() == "/":
        raise Unsupported(
            "response_format: url is not supported in a batch, which may end after the URLs are "
            "valid; use b64_json",
            param="response_format",
        )


async def image_item(
    operations: Operations, caller: Caller, body: ImageBody, data: bytes, number: int
) -> ImageItem:
    """Return an image as base64, or as the URL of a new file."""
    if body.response_format == "b64_json":
        return ImageItem(b64_json=base64_text(data))
    name = f"image-{number}.{body.output_format}"
    file = await operations.documents.files.write(
        name, "vision", single(data), caller, lifetime=URL_SECONDS
    )
    return ImageItem(url=f"{base_url()}v1/files/{file.id}/content")


async def single(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def chunks(
    events: AsyncGenerator[ImageEvent, None], body: ImageBody
) -> AsyncGenerator[ImagePartial | ImageCompleted | ImageProgress, None]:
    """Yield the events of a request: one for each preview and image."""
    previews = 0
    async with aclosing(events):
        async for event in events:
            if not event.images:
                if body.progress:
                    yield progress_event(event, body)
            elif event.final:
                for index in range(len(event.images)):
                    yield completed_event(event, index, body)
            else:
                for index in range(len(event.images)):
                    yield partial_event(event, index, body, previews)
                previews += 1


def progress_event(step: ImageEvent, body: ImageBody) -> ImageProgress:
    kind = ImageEditProgress if isinstance(body, ImageEditForm) else ImageProgress
    return kind(done=step.done, total=step.total)


def partial_event(step: ImageEvent, index: int, body: ImageBody, preview: int) -> ImagePartial:
    kind = ImageEditPartial if isinstance(body, ImageEditForm) else ImagePartial
    return kind(
        b64_json=base64_text(step.images[index]),
        background="opaque",
        created_at=int(time.time()),
        output_format=read_format(body),
        quality=body.named_quality,
        size=size_of(step.sizes[index]),
        partial_image_index=preview,
    )


def completed_event(step: ImageEvent, index: int, body: ImageBody) -> ImageCompleted:
    kind = ImageEditCompleted if isinstance(body, ImageEditForm) else ImageCompleted
    return kind(
        b64_json=base64_text(step.images[index]),
        background="opaque",
        created_at=int(time.time()),
        output_format=read_format(body),
        quality=body.named_quality,
        size=size_of(step.sizes[index]),
        usage=usage_of(step, 1, with_input=index == 0),
        safety_identifier=safety_identifier(body),
        adapter_generations=unless_none(step.generations),
    )


def usage_of(step: ImageEvent, images: int, with_input: bool = True) -> ImageUsage:
    """Return the usage of a number of images, with that of the prompt and the initial image."""
    text, image = (step.prompt_tokens, step.image_tokens) if with_input else (0, 0)
    output = step.output_tokens * images
    return ImageUsage(
        input_tokens=text + image,
        output_tokens=output,
        total_tokens=text + image + output,
        input_tokens_details=ImageTokens(text_tokens=text, image_tokens=image),
        output_tokens_details=ImageTokens(text_tokens=0, image_tokens=output),
    )


def size_of(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def safety_identifier(body: ImageBody) -> str | UnsetType:
    return body.safety_identifier or body.user or UNSET


ROUTES: tuple[Route, ...] = (
    Route(
        name="POST /v1/images/generations",
        handler=generations,
        request=ImageBody,
        response=ImageList,
        events=ImagePartial | ImageCompleted | ImageProgress,
        event_format=DATA_EVENTS,
    ),
    Route(
        name="POST /v1/images/edits",
        handler=edits,
        request=ImageEditForm,
        response=ImageList,
        events=ImageEditPartial | ImageEditCompleted | ImageEditProgress,
        event_format=DATA_EVENTS,
    ),
    Route(
        name="POST /v1/images/variations",
        handler=variations,
        request=ImageVariationForm,
        response=ImageList,
    ),
)
