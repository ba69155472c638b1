"""OpenAI's routes for files, and for uploads of files in parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar, Literal
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ostro.core.pipeline import check_fields
from ostro.core.records import Route
from ostro.entrypoints.http.body import read_form, read_request
from ostro.entrypoints.http.context import caller_of, documents_of
from ostro.entrypoints.http.errors import respond
from ostro.entrypoints.http.fields import parse_fields
from ostro.entrypoints.http.forms import file_of, texts_of
from ostro.entrypoints.http.pages import ListPage, make_page
from ostro.entrypoints.http.query import parse_query
from ostro.entrypoints.operations.files import (
    ExpiresAfter,
    File,
    FileListRequest,
    FileRequest,
    Purpose,
)
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.state import CHUNK
from ostro.entrypoints.operations.uploads import (
    CompleteUploadRequest,
    Upload,
    UploadPart,
    UploadRequest,
)

MAX_JSON = 1 << 20
"""Limit on the bytes of a JSON body."""
CONTENT_TYPE = "application/octet-stream"
"""Media type of the content of files: browsers save it."""


class FileObject(msgspec.Struct, kw_only=True):
    """A stored file; times are in seconds since 1970."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | UnsetType = UNSET
    status: Literal["processed"] = "processed"
    object: Literal["file"] = "file"


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


class FileList(ListPage, kw_only=True):
    """A page of files."""

    data: list[FileObject]


class FileDeleted(msgspec.Struct, kw_only=True):
    """A file was deleted."""

    id: str
    deleted: Literal[True] = True
    object: Literal["file"] = "file"


class UploadObject(msgspec.Struct, kw_only=True):
    """An upload of a file in parts; `bytes` is the size of the file."""

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled"]
    file: FileObject | None
    object: Literal["upload"] = "upload"


class UploadPartObject(msgspec.Struct, kw_only=True):
    """A part of an upload."""

    id: str
    created_at: int
    upload_id: str
    object: Literal["upload.part"] = "upload.part"


async def create_file(request: Request) -> Response:
    """Upload a file."""
    async with read_file(request, FileForm, "file") as (file, texts):
        wanted = parse_fields([*texts, ("filename", file.filename or "")], FileRequest)
        made = await documents_of(request).files.create(wanted, chunks_of(file), caller_of(request))
    return respond(200, file_object(made))


async def list_files(request: Request) -> Response:
    """List files, newest first."""
    wanted = parse_query(request, FileListRequest)
    page = await documents_of(request).files.list(wanted, caller_of(request))
    data = [file_object(file) for file in page.files]
    return respond(200, make_page(FileList, data, page.has_more))


async def get_file(request: Request) -> Response:
    """Describe a file."""
    file = await documents_of(request).files.get(request.path_params["id"], caller_of(request))
    return respond(200, file_object(file))


async def delete_file(request: Request) -> Response:
    """Delete a file with its content."""
    id = request.path_params["id"]
    await documents_of(request).files.delete(id, caller_of(request))
    return respond(200, FileDeleted(id=id))


async def get_content(request: Request) -> Response:
    """Return the content of a file."""
    id = request.path_params["id"]
    file, chunks = await documents_of(request).files.content(id, caller_of(request))
    headers = {
        "content-length": str(file.nbytes),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}",
        "x-content-type-options": "nosniff",
    }
    return StreamingResponse(chunks, 200, headers, CONTENT_TYPE)


async def create_upload(request: Request) -> Response:
    """Begin an upload of a file in parts."""
    wanted = await read_request(request, UploadRequest, limit=MAX_JSON)
    made = await documents_of(request).uploads.create(wanted, caller_of(request))
    return respond(200, upload_object(made))


async def add_part(request: Request) -> Response:
    """Upload a part of a file."""
    id = request.path_params["id"]
    async with read_file(request, PartForm, "data") as (file, texts):
        check_fields(dict(texts), PartForm)
        part = await documents_of(request).uploads.add(id, chunks_of(file), caller_of(request))
    return respond(200, part_object(part))


async def complete_upload(request: Request) -> Response:
    """Join the parts of an upload to a file."""
    wanted = await read_request(request, CompleteUploadRequest, limit=MAX_JSON)
    uploads = documents_of(request).uploads
    done = await uploads.complete(request.path_params["id"], wanted, caller_of(request))
    return respond(200, upload_object(done))


async def cancel_upload(request: Request) -> Response:
    """Cancel an upload."""
    uploads = documents_of(request).uploads
    return respond(
        200, upload_object(await uploads.cancel(request.path_params["id"], caller_of(request)))
    )


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


def file_object(file: File) -> FileObject:
    return FileObject(
        id=file.id,
        bytes=file.nbytes,
        created_at=file.created,
        filename=file.filename,
        purpose=file.purpose,
        expires_at=UNSET if file.expires is None else file.expires,
    )


def upload_object(upload: Upload) -> UploadObject:
    return UploadObject(
        id=upload.id,
        bytes=upload.request.bytes,
        created_at=upload.created,
        expires_at=upload.expires,
        filename=upload.request.filename,
        purpose=upload.request.purpose,
        status=upload.status,
        file=None if upload.file is None else file_object(upload.file),
    )


def part_object(part: UploadPart) -> UploadPartObject:
    return UploadPartObject(id=part.id, created_at=part.created, upload_id=part.upload)


def routes(operations: Operations) -> list[Route]:
    """Return the routes."""
    return [
        Route(
            name="POST /v1/files",
            endpoint=create_file,
            request=FileForm,
            response=FileObject,
            error_statuses=(400, 503),
        ),
        Route(
            name="GET /v1/files",
            endpoint=list_files,
            request=FileListRequest,
            response=FileList,
            error_statuses=(400, 503),
        ),
        Route(name="GET /v1/files/{id}", endpoint=get_file, response=FileObject),
        Route(name="DELETE /v1/files/{id}", endpoint=delete_file, response=FileDeleted),
        Route(name="GET /v1/files/{id}/content", endpoint=get_content, response=(CONTENT_TYPE,)),
        Route(
            name="POST /v1/uploads",
            error_statuses=(400, 503),
            endpoint=create_upload,
            request=UploadRequest,
            response=UploadObject,
        ),
        Route(
            name="POST /v1/uploads/{id}/parts",
            endpoint=add_part,
            request=PartForm,
            response=UploadPartObject,
        ),
        Route(
            name="POST /v1/uploads/{id}/complete",
            endpoint=complete_upload,
            request=CompleteUploadRequest,
            response=UploadObject,
        ),
        Route(name="POST /v1/uploads/{id}/cancel", endpoint=cancel_upload, response=UploadObject),
    ]
