"""OpenAI's route for image generation, with optional streaming of previews."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from ostro.core.records import Route
from ostro.entrypoints.http.body import read_request
from ostro.entrypoints.http.context import caller_of, operations_of
from ostro.entrypoints.http.errors import respond
from ostro.entrypoints.http.responses import unless_none
from ostro.entrypoints.http.stream import EventStream, event, unless_disconnected
from ostro.entrypoints.operations.media import ImageEvent, ImageRequest, base64_text
from ostro.entrypoints.operations.operations import Operations


class ImageItem(msgspec.Struct, kw_only=True):
    """An image file in base64."""

    b64_json: str


class ImageList(msgspec.Struct, kw_only=True):
    """The generated images."""

    created: int
    model: str
    data: list[ImageItem]
    adapter_generations: list[str] | UnsetType = UNSET


class ImageChunk(msgspec.Struct, kw_only=True):
    """An event of a streamed generation: progress, a preview, or the images.

    `done` of `total` steps are done. The first image is in `b64_json`; several are in `data`.
    """

    type: Literal[
        "image_generation.progress",
        "image_generation.partial_image",
        "image_generation.completed",
    ]
    done: int
    total: int
    adapter_generations: list[str] | UnsetType = UNSET
    partial_image_index: int | UnsetType = UNSET
    b64_json: str | UnsetType = UNSET
    data: list[ImageItem] | UnsetType = UNSET


async def generations(request: Request) -> Response:
    """Generate images."""
    body = await read_request(request, ImageRequest)
    operations, caller = operations_of(request), caller_of(request)
    if body.stream:
        return EventStream(chunks(operations.draw_events(body, caller)))
    drawn = await unless_disconnected(request, operations.draw(body, caller))
    content = ImageList(
        created=int(time.time()),
        model=drawn.model,
        data=[ImageItem(b64_json=base64_text(image)) for image in drawn.images],
        adapter_generations=unless_none(drawn.generations),
    )
    return respond(200, content)


async def chunks(events: AsyncGenerator[ImageEvent, None]) -> AsyncGenerator[bytes, None]:
    """Yield the events of an image generation as server-sent events."""
    previews = 0
    async with aclosing(events):
        async for each in events:
            kind = "completed" if each.final else "partial_image" if each.images else "progress"
            chunk = ImageChunk(
                type=f"image_generation.{kind}",  # type: ignore[arg-type]
                done=each.done,
                total=each.total,
                adapter_generations=unless_none(each.generations),
            )
            if kind == "partial_image":
                chunk.partial_image_index = previews
                previews += 1
            images = [base64_text(image) for image in each.images]
            if images:
                chunk.b64_json = images[0]
            if len(images) > 1:
                chunk.data = [ImageItem(b64_json=image) for image in images]
            yield event(chunk)


def routes(operations: Operations) -> list[Route]:
    """Return the route."""
    return [
        Route(
            name="POST /v1/images/generations",
            endpoint=generations,
            request=ImageRequest,
            response=ImageList,
            events=ImageChunk,
        )
    ]
