"""OpenAI's routes for files whose content is in a form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import msgspec
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from ostro.core.pipeline import check_fields
from ostro.core.routes import Route
from ostro.entrypoints.api.openai.files import (
    FileObject,
    UploadPartObject,
    file_object,
    part_object,
)
from ostro.entrypoints.http.body import read_form
from ostro.entrypoints.http.context import caller_of, documents_of
from ostro.entrypoints.http.errors import respond
from ostro.entrypoints.http.fields import parse_fields
from ostro.entrypoints.http.forms import file_of, texts_of
from ostro.entrypoints.operations.documents.files import ExpiresAfter, FileRequest, Purpose
from ostro.entrypoints.operations.documents.state import CHUNK


class FileForm(msgspec.Struct, kw_only=True):
    """The form of a file to store."""

    media_type: ClassVar[str] = "multipart/form-data"

    file: bytes
    purpose: Purpose
    expires_after: ExpiresAfter | None = None


class PartForm(msgspec.Struct, kw_only=True):
    """The form of a part of an upload."""

    media_type: ClassVar[str] = "multipart/form-data"

    data: bytes


async def create_file(request: Request) -> Response:
    """Upload a file."""
    async with read_file(request, FileForm, "file") as (file, texts):
        wanted = parse_fields([*texts, ("filename", file.filename or "")], FileRequest)
        made = await documents_of(request).files.create(wanted, chunks_of(file), caller_of(request))
    return respond(200, file_object(made))


async def add_part(request: Request) -> Response:
    """Upload a part of a file."""
    id = request.path_params["id"]
    async with read_file(request, PartForm, "data") as (file, texts):
        check_fields(dict(texts), PartForm)
        part = await documents_of(request).uploads.add(id, chunks_of(file), caller_of(request))
    return respond(200, part_object(part))


@asynccontextmanager
async def read_file(
    request: Request, kind: type[msgspec.Struct], field: str
) -> AsyncIterator[tuple[UploadFile, list[tuple[str, str]]]]:
    """Yield the file in a field of a form, and the names and texts of the other fields.

    Raises as `read_form`, `texts_of` and `file_of`. Without a store the body is not read.
    """
    documents_of(request).state.require()
    async with read_form(request) as form:
        texts = texts_of(form, kind, (field,))
        yield file_of(form, field), texts


async def chunks_of(file: UploadFile) -> AsyncIterator[bytes]:
    """Yield the content of a file in a form."""
    while data := await asyncio.to_thread(file.file.read, CHUNK):
        yield data


ROUTES: tuple[Route, ...] = (
    Route(
        name="POST /v1/files",
        endpoint=create_file,
        request=FileForm,
        response=FileObject,
        error_statuses=(400, 503, 507),
    ),
    Route(
        name="POST /v1/uploads/{id}/parts",
        endpoint=add_part,
        request=PartForm,
        response=UploadPartObject,
        error_statuses=(400, 404, 503, 507),
    ),
)
