"""OpenAI's routes for files, and for uploads of files in parts."""

from __future__ import annotations

from typing import ClassVar, Literal
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType

from ostro.core.pipeline import parse_request
from ostro.core.routes import FORM, Content, RequestBody, Route
from ostro.core.uploaded_file import UploadedFile
from ostro.entrypoints.api.openai.pages import MAX_JSON, ListPage, make_page
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.documents.files import (
    ExpiresAfter,
    File,
    FileListRequest,
    FileRequest,
    Purpose,
)
from ostro.entrypoints.operations.documents.uploads import (
    CompleteUploadRequest,
    Upload,
    UploadPart,
    UploadRequest,
)
from ostro.entrypoints.operations.operations import Operations

CONTENT_TYPE = "application/octet-stream"
"""Media type of the content of files: browsers save it."""


class FileForm(msgspec.Struct, kw_only=True):
    """The form of a file to store."""

    media_type: ClassVar[str] = FORM

    file: UploadedFile
    purpose: Purpose
    expires_after: ExpiresAfter | None = None


class PartForm(msgspec.Struct, kw_only=True):
    """The form of a part of an upload."""

    media_type: ClassVar[str] = FORM

    data: UploadedFile


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


async def create_file(operations: Operations, caller: Caller, form: FileForm) -> FileObject:
    """Upload a file."""
    fields = {"purpose": form.purpose, "expires_after": form.expires_after}
    request = parse_request({"filename": form.file.filename, **fields}, FileRequest)
    return file_object(await operations.documents.files.create(request, form.file.chunks(), caller))


async def list_files(operations: Operations, caller: Caller, request: FileListRequest) -> FileList:
    """List files, newest first."""
    page = await operations.documents.files.list(request, caller)
    return make_page(FileList, [file_object(file) for file in page.files], page.has_more)


async def get_file(operations: Operations, caller: Caller, request: None, *, id: str) -> FileObject:
    """Describe a file."""
    return file_object(await operations.documents.files.get(id, caller))


async def delete_file(
    operations: Operations, caller: Caller, request: None, *, id: str
) -> FileDeleted:
    """Delete a file with its content."""
    await operations.documents.files.delete(id, caller)
    return FileDeleted(id=id)


async def get_content(operations: Operations, caller: Caller, request: None, *, id: str) -> Content:
    """Return the content of a file."""
    file, chunks = await operations.documents.files.content(id, caller)
    headers = {
        "content-length": str(file.nbytes),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}",
        "x-content-type-options": "nosniff",
    }
    return Content(data=chunks, media_type=CONTENT_TYPE, headers=headers)


async def create_upload(
    operations: Operations, caller: Caller, request: UploadRequest
) -> UploadObject:
    """Begin an upload of a file in parts."""
    return upload_object(await operations.documents.uploads.create(request, caller))


async def add_part(
    operations: Operations, caller: Caller, form: PartForm, *, id: str
) -> UploadPartObject:
    """Upload a part of a file."""
    return part_object(await operations.documents.uploads.add(id, form.data.chunks(), caller))


async def complete_upload(
    operations: Operations, caller: Caller, request: CompleteUploadRequest, *, id: str
) -> UploadObject:
    """Join the parts of an upload to a file."""
    return upload_object(await operations.documents.uploads.complete(id, request, caller))


async def cancel_upload(
    operations: Operations, caller: Caller, request: None, *, id: str
) -> UploadObject:
    """Cancel an upload."""
    return upload_object(await operations.documents.uploads.cancel(id, caller))


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


ROUTES: tuple[Route, ...] = (
    Route(
        name="POST /v1/files",
        handler=create_file,
        request=FileForm,
        requires=Operations.require_store,
        response=FileObject,
        error_statuses=(400, 503, 507),
        cancel_on_disconnect=False,
    ),
    Route(
        name="GET /v1/files",
        handler=list_files,
        request=FileListRequest,
        response=FileList,
        error_statuses=(400, 503),
    ),
    Route(name="GET /v1/files/{id}", handler=get_file, response=FileObject),
    Route(
        name="DELETE /v1/files/{id}",
        handler=delete_file,
        response=FileDeleted,
    ),
    Route(name="GET /v1/files/{id}/content", handler=get_content, response=(CONTENT_TYPE,)),
    Route(
        name="POST /v1/uploads",
        error_statuses=(400, 503, 507),
        handler=create_upload,
        request=UploadRequest,
        body=RequestBody(max_bytes=MAX_JSON),
        response=UploadObject,
        cancel_on_disconnect=False,
    ),
    Route(
        name="POST /v1/uploads/{id}/parts",
        handler=add_part,
        request=PartForm,
        requires=Operations.require_store,
        response=UploadPartObject,
        error_statuses=(400, 404, 503, 507),
        cancel_on_disconnect=False,
    ),
    Route(
        name="POST /v1/uploads/{id}/complete",
        handler=complete_upload,
        request=CompleteUploadRequest,
        body=RequestBody(max_bytes=MAX_JSON),
        response=UploadObject,
        cancel_on_disconnect=False,
    ),
    Route(
        name="POST /v1/uploads/{id}/cancel",
        handler=cancel_upload,
        response=UploadObject,
        cancel_on_disconnect=False,
    ),
)
