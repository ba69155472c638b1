"""OpenAI's routes for speech to text: transcriptions, and translations to English."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ostro.core.errors import RequestError, Unsupported, nearest
from ostro.core.pipeline import ModelTarget, parse
from ostro.entrypoints.http.body import check_values, read_form
from ostro.entrypoints.http.responses import adapter_headers, adapters
from ostro.entrypoints.http.service import Service
from ostro.entrypoints.http.stream import EventStream, event, unless_disconnected

TYPES = {
    "json": "application/json",
    "verbose_json": "application/json",
    "text": "text/plain; charset=utf-8",
    "srt": "application/x-subrip; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
}
FIELDS = {
    "file",
    "model",
    "adapter",
    "adapters",
    "language",
    "prompt",
    "response_format",
    "temperature",
    "stream",
}
LISTS = {"timestamp_granularities[]", "timestamp_granularities", "include[]"}


async def transcriptions(request: Request) -> Response:
    """POST /v1/audio/transcriptions"""
    return await answer(request, "transcribe")


async def translations(request: Request) -> Response:
    """POST /v1/audio/translations"""
    return await answer(request, "translate")


async def answer(request: Request, task: str) -> Response:
    service: Service = request.app.state.service
    async with read_form(request) as form:
        check_fields(form)
        admitted = service.admit(target_of(form), "transcribe")
        pipeline, options = admitted.pipeline, options_of(form, task)
        shape = text_of(form, "response_format") or "json"
        if shape not in TYPES:
            raise RequestError(
                f"unknown response_format {shape!r:.40}; expected one of {', '.join(TYPES)}",
                param="response_format",
            )
        data = await file_of(form)
        streamed = flag_of(form, "stream")
    if streamed:
        return EventStream(events(pipeline, data, pipeline.new_task(options, admitted.adapters)))
    work = pipeline.transcribe(data, adapters=admitted.adapters, **options)
    transcript = await unless_disconnected(request, work)
    headers = {} if "json" in shape else adapter_headers(transcript.generations)
    return Response(transcript.format(shape), 200, headers, TYPES[shape])


def check_fields(form: FormData) -> None:
    """Raise RequestError for unknown and repeated fields, Unsupported for word timestamps."""
    for name in form:
        if name not in FIELDS | LISTS:
            raise RequestError(
                f"unknown field {name!r:.80}{nearest(name, FIELDS)}", param=name[:80]
            )
        if name in FIELDS and len(form.getlist(name)) > 1:
            raise RequestError(f"duplicate field {name}", param=name)
    granularities = [x for name in LISTS for x in form.getlist(name)]
    if "word" in granularities:
        raise Unsupported("timestamp_granularities: word is not supported; use segment")


def target_of(form: FormData) -> ModelTarget:
    """Return the model and the adapters of a form. Adapters are a name or JSON."""
    given: dict[str, Any] = {"model": text_of(form, "model"), "adapter": text_of(form, "adapter")}
    for name in ("adapter", "adapters"):
        text = text_of(form, name)
        if text is not None and text.lstrip()[:1] in ("[", "{"):
            try:
                given[name] = msgspec.json.decode(text)
            except (ValueError, RecursionError):
                raise RequestError(f"{name} is not valid JSON", param=name) from None
        elif text is not None and name == "adapters":
            given[name] = [text]
    check_values(given)
    return parse(given, ModelTarget)


def options_of(form: FormData, task: str) -> dict[str, Any]:
    """The pipeline's options. Raises RequestError for a malformed temperature."""
    options: dict[str, Any] = {"task": task}
    for name in ("language", "prompt"):
        if (text := text_of(form, name)) is not None:
            options[name] = text
    if (text := text_of(form, "temperature")) is not None:
        try:
            options["temperature"] = float(text)
        except ValueError:
            raise RequestError(
                f"temperature={text!r:.40} is not a number", param="temperature"
            ) from None
    return options


async def file_of(form: FormData) -> bytes:
    """The contents of the field `file`. Raises RequestError if it is missing."""
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise RequestError(
            "the field file is missing; send the audio as multipart/form-data", param="file"
        )
    return await file.read()


def flag_of(form: FormData, name: str) -> bool:
    text = (text_of(form, name) or "false").lower()
    if text not in ("true", "false"):
        raise RequestError(f"{name}={text!r:.40}: expected true or false", param=name)
    return text == "true"


def text_of(form: FormData, name: str) -> str | None:
    value = form.get(name)
    if isinstance(value, UploadFile):
        raise RequestError(f"{name}: expected text, got a file", param=name)
    return value or None


async def events(pipeline: Any, data: bytes, work: Any) -> AsyncGenerator[bytes, None]:
    """OpenAI's events of a transcription: each segment, then the whole text."""
    text = ""
    async with aclosing(pipeline.stream(data, work)) as segments:
        async for segment in segments:
            text += segment.text
            yield event({"type": "transcript.text.delta", "delta": segment.text})
    done = {"type": "transcript.text.done", "text": text.strip()}
    yield event({**done, **adapters(work.generations)})


ROUTES = [
    Route("/v1/audio/transcriptions", transcriptions, methods=["POST"]),
    Route("/v1/audio/translations", translations, methods=["POST"]),
]
