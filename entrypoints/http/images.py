"""OpenAI's route for image generation, with optional streaming of previews."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from io import BytesIO
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ostro.core.errors import RequestError, Unsupported
from ostro.core.pipeline import ModelTarget, parse
from ostro.entrypoints.http.body import read_json
from ostro.entrypoints.http.errors import respond
from ostro.entrypoints.http.responses import adapters
from ostro.entrypoints.http.service import Service
from ostro.entrypoints.http.stream import EventStream, event, unless_disconnected


class ImageRequest(ModelTarget, kw_only=True):
    """A request for images. The fields steps, guidance and seed extend OpenAI's API."""

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


async def generations(request: Request) -> Response:
    """POST /v1/images/generations"""
    service: Service = request.app.state.service
    body = parse(await read_json(request, service.max_body()), ImageRequest)
    if body.response_format == "url":
        raise Unsupported(
            "response_format: url is not supported, since images are not stored; use b64_json",
            param="response_format",
        )
    admitted = service.admit(body, "draw")
    pipeline, options = admitted.pipeline, options_of(body)
    options["adapters"] = admitted.adapters
    if body.stream:
        options["previews"] = body.partial_images or 0
        return EventStream(events(pipeline.stream(body.prompt, **options), body))
    drawn = await unless_disconnected(request, pipeline.finish(body.prompt, **options))
    data = [{"b64_json": packed(image, body.output_format)} for image in drawn.images]
    head = {"created": int(time.time()), "model": admitted.name}
    return respond(200, {**head, "data": data, **adapters(drawn.generations)})


def options_of(body: ImageRequest) -> dict[str, Any]:
    """The pipeline's options. Raises RequestError for a malformed size."""
    fields = {"n": body.n, "steps": body.steps, "guidance": body.guidance, "seed": body.seed}
    if body.size not in (None, "auto"):
        width, _, height = body.size.partition("x")
        if not (width.isdigit() and height.isdigit() and len(body.size) < 12):
            raise RequestError(
                f"size={body.size!r:.40}: expected WIDTHxHEIGHT, such as 1024x1024", param="size"
            )
        fields |= {"width": int(width), "height": int(height)}
    return {name: value for name, value in fields.items() if value is not None}


async def events(
    steps: AsyncGenerator[Any, None], body: ImageRequest
) -> AsyncGenerator[bytes, None]:
    """The events of an image generation: progress, previews, and the images."""
    previews = 0
    async with aclosing(steps):
        async for step in steps:
            kind = "completed" if step.final else "partial_image" if step.images else "progress"
            content: dict[str, Any] = {
                "type": f"image_generation.{kind}",
                "done": step.done,
                "total": step.total,
                **adapters(step.generations),
            }
            if kind == "partial_image":
                content["partial_image_index"] = previews
                previews += 1
            if step.images:
                content["b64_json"] = packed(step.images[0], body.output_format)
            if len(step.images) > 1:
                content["data"] = [
                    {"b64_json": packed(image, body.output_format)} for image in step.images
                ]
            yield event(content)


def packed(image: Any, format: str) -> str:
    """An image file in base64."""
    file = BytesIO()
    image.save(file, format=format.upper())
    return base64.b64encode(file.getvalue()).decode()


ROUTES = [Route("/v1/images/generations", generations, methods=["POST"])]
