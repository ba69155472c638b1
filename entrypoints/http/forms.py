"""Requests in multipart forms: fields in the notation of the OpenAI SDK, and files."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar, get_args

import msgspec
from starlette.datastructures import FormData, UploadFile

from ostro.core.errors import RequestError, Unsupported
from ostro.core.pipeline import check_fields
from ostro.core.uploaded_file import UploadedFile
from ostro.entrypoints.http.fields import is_list, parse_fields, split_name
from ostro.entrypoints.operations.requests.ignored import ignore

MAX_FILES = 16
"""Limit on the files of a form."""
R = TypeVar("R", bound=msgspec.Struct)


def parse_form(form: FormData, kind: type[R]) -> R:
    """Return the request in a form; a text is accepted for a number or a boolean.

    Raises RequestError as `texts_of` and `parse_fields`, and for a missing file; Unsupported for
    several files in a field for one.
    """
    fields = {f.encode_name: f for f in msgspec.structs.fields(kind) if has_file(f.type)}
    texts, files = texts_of(form, kind, fields), dict[str, object]()
    for name, field in fields.items():
        uploads = uploads_of(form, name)
        if not uploads:
            if field.required:
                raise RequestError(
                    f"the field {name} is missing; send the file as multipart/form-data", param=name
                )
        elif is_list(field.type):
            files[name] = uploads
        elif len(uploads) == 1:
            files[name] = uploads[0]
        else:
            raise Unsupported(f"{name}: several files are not supported; send one", param=name)
    return parse_fields(texts, kind, files=files)


def has_file(annotation: Any) -> bool:
    """Whether a type is `UploadedFile`, or contains it."""
    return annotation is UploadedFile or any(map(has_file, get_args(annotation)))


def uploads_of(form: FormData, name: str) -> list[UploadedFile]:
    """Return the files in a field; "name[]" is the same field."""
    values = [*form.getlist(name), *form.getlist(f"{name}[]")]
    return [
        UploadedFile(value.filename or "", value.size or 0, value.file)
        for value in values
        if isinstance(value, UploadFile)
    ]


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
            check_fields([name], kind, ignore)
            if name in kind.__struct_encode_fields__:
                raise RequestError(f"{name}: expected text, got a file", param=name)
    return texts
