"""Requests in multipart forms: fields in the notation of the OpenAI SDK, and files."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

import msgspec
from starlette.datastructures import FormData, UploadFile

from ostro.core.errors import RequestError, Unsupported
from ostro.core.pipeline import check_fields
from ostro.entrypoints.http.fields import parse_fields, split_name

R = TypeVar("R", bound=msgspec.Struct)


def parse_form(form: FormData, kind: type[R], files: Collection[str]) -> R:
    """Return the request in the fields of a form, other than `files`. Raises as `parse_fields`."""
    return parse_fields(texts_of(form, kind, files), kind)


def texts_of(
    form: FormData, kind: type[msgspec.Struct], files: Collection[str]
) -> list[tuple[str, str]]:
    """Return the fields of a form other than `files`: their names and texts.

    An empty text counts as absent, since a form of a web page sends all its fields.
    Raises RequestError for a text in one of `files` and for a file in another field; for one that
    is not a field of `kind` as `check_fields`.
    """
    texts: list[tuple[str, str]] = []
    for full, value in form.multi_items():
        name, key = split_name(full)
        if isinstance(value, str) and name not in files:
            if value or key:
                texts.append((full, value))
        elif isinstance(value, str):
            raise RequestError(f"{name}: expected a file, got text", param=name)
        elif name not in files:
            check_fields([name], kind)
            raise RequestError(f"{name}: expected text, got a file", param=name)
    return texts


def file_of(form: FormData, name: str) -> UploadFile:
    """Return the file in a field; "name[]" is the same field.

    Raises RequestError if the file is missing, Unsupported for several files.
    """
    found = [*form.getlist(name), *form.getlist(f"{name}[]")]
    files = [file for file in found if isinstance(file, UploadFile)]
    if not files:
        raise RequestError(
            f"the field {name} is missing; send the file as multipart/form-data", param=name
        )
    if len(files) > 1:
        raise Unsupported(f"{name}: several files are not supported; send one", param=name)
    return files[0]


async def read_upload(form: FormData, name: str, limit: int | None = None) -> bytes:
    """Return the contents of the file in a field.

    limit: in bytes, None for that of the form. Raises as `file_of`, and RequestError if the file is
    too large.
    """
    file = file_of(form, name)
    if limit is not None and (file.size or 0) > limit:
        raise RequestError(f"the file in {name} exceeds {limit} bytes", param=name)
    return await file.read()
