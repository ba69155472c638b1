"""Routes with handlers whose requests are forms: their fields, their files and their limits."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, ClassVar

import httpx
import msgspec
import pytest
from echo.server import Running, Start

from ostro import Route, hookimpl
from ostro.errors import PluginError
from ostro.http import FORM, RequestBody, UploadedFile

LARGE = bytes(range(256)) * (8 << 10)
"""A file that is spooled to the disk."""
kept: list[UploadedFile] = []


class Form(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of the tested routes."""

    media_type: ClassVar[str] = FORM

    file: UploadedFile
    pages: list[UploadedFile] = []
    mask: UploadedFile | None = None
    count: int = 0
    stream: bool = False


class SmallForm(Form, kw_only=True):
    """The form of a route with a limit of its own."""


async def describe(operations: Any, caller: Any, form: Form) -> Any:
    """Describe the files."""
    kept.append(form.file)
    if form.stream:
        return events(await form.file.read())
    files = [form.file, *form.pages, *([form.mask] if form.mask else [])]
    return {
        "files": [[f.filename, f.size, len(await f.read()), f.file.closed] for f in files],
        "count": form.count,
    }


async def events(data: bytes) -> AsyncGenerator[Any, None]:
    yield {"size": len(data)}


async def chunks(operations: Any, caller: Any, form: Form, *, id: str) -> Any:
    """Read a file in parts."""
    kept.append(form.file)
    parts = [part async for part in form.file.chunks()]
    return {"id": id, "parts": [len(part) for part in parts], "same": b"".join(parts) == LARGE}


class Plugin:
    @hookimpl
    def ostro_routes(self) -> list[Route]:
        return [
            Route(name="POST /forms", handler=describe, request=Form),
            Route(name="POST /forms/{id}", handler=chunks, request=Form),
            Route(
                name="POST /small",
                handler=describe,
                request=SmallForm,
                body=RequestBody(max_bytes=1000),
            ),
        ]


@pytest.fixture(scope="module")
def server(start: Start) -> Running:
    return start(plugin=Plugin())


Files = list[tuple[str, tuple[str, bytes]]]
FILE: Files = [("file", ("a.txt", b"abc"))]


def send(server: Running, files: Files, path: str = "/forms", **fields: str) -> httpx.Response:
    return server.http.post(path, files=files, data=fields)


def test_a_handler_gets_fields_and_files(server: Running) -> None:
    pages: Files = [("pages", ("1", b"x")), ("pages[]", ("2", b"yy")), ("mask", ("m", LARGE))]
    answer = send(server, FILE + pages, count="3").json()
    assert answer["count"] == 3
    size = len(LARGE)
    assert answer["files"] == [
        ["a.txt", 3, 3, True],
        ["1", 1, 1, True],
        ["2", 2, 2, True],
        ["m", size, size, True],
    ]
    assert send(server, FILE).json() == {"files": [["a.txt", 3, 3, True]], "count": 0}


def test_a_large_file_is_read_in_parts_and_closed_after_the_handler(server: Running) -> None:
    answer = send(server, [("file", ("a", LARGE))], "/forms/x").json()
    assert answer == {"id": "x", "parts": [1 << 20, 1 << 20], "same": True}
    assert kept[-1].file.closed


def test_events_of_a_form_are_streamed(server: Running) -> None:
    response = send(server, FILE, stream="true")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text == 'data: {"size":3}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("files", "fields", "param", "message"),
    [
        ([("mask", ("m", b""))], {}, "file", "the field file is missing"),
        (FILE * 2, {}, "file", "several files"),
        ([*FILE, ("mask", ("m", b"")), ("mask[]", ("m", b""))], {}, "mask", "several files"),
        (FILE, {"pages": "x"}, "pages", "expected a file, got text"),
        ([*FILE, ("count", ("c", b"1"))], {}, "count", "expected text, got a file"),
        ([*FILE, ("other", ("c", b"1"))], {}, "other", "unknown field"),
        (FILE, {"count": "x"}, "count", "Expected `int`"),
        (FILE, {"count": "1", "other": "x"}, "other", "unknown field"),
        (FILE, {"other": "a\0b"}, None, "U+0000"),
    ],
)
def test_invalid_forms_are_refused(
    server: Running, files: Files, fields: dict[str, str], param: str | None, message: str
) -> None:
    response = send(server, files, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), response.text
    assert message in error["message"]
    assert send(server, FILE).status_code == 200


def test_texts_of_other_encodings_are_unicode(server: Running) -> None:
    """Python decodes "\\ud800" in this encoding to half of a character."""
    head = {"content-type": f"{FORM}; boundary=x; charset=unicode_escape"}
    field = b'--x\r\ncontent-disposition: form-data; name="count"\r\n\r\n\\ud800\r\n'
    file = (
        b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nabc\r\n--x--\r\n'
    )
    response = server.http.post("/forms", content=field + file, headers=head)
    assert response.status_code == 400 and "not valid Unicode" in response.text


def test_a_form_has_the_limit_of_its_route(server: Running) -> None:
    assert send(server, FILE, "/small").status_code == 200
    assert send(server, [("file", ("a", bytes(2000)))], "/small").status_code == 413
    body = httpx.Request("POST", server.url, files=[("file", ("a", bytes(2000)))])
    head = {"content-type": body.headers["content-type"]}
    sent = server.http.post("/small", content=iter([body.read()]), headers=head)  # no length
    assert sent.status_code == 413 and "1000 bytes" in sent.text


def test_other_bodies_are_refused(server: Running) -> None:
    assert server.post("/forms", count=1).status_code == 415


def test_the_document_has_the_files(server: Running) -> None:
    document = server.http.get("/openapi.json").json()
    content = document["paths"]["/forms"]["post"]["requestBody"]["content"]
    assert list(content) == [FORM]
    fields = document["components"]["schemas"]["Form"]["properties"]
    file = {"contentMediaType": "application/octet-stream"}
    assert fields["file"] == file and fields["pages"]["items"] == file
    assert file in fields["mask"]["anyOf"]


@pytest.mark.parametrize(
    "body",
    [RequestBody(max_inputs=2), RequestBody(any_type=True), RequestBody(check=lambda body: None)],
)
def test_options_of_json_do_not_apply_to_forms(body: RequestBody) -> None:
    with pytest.raises(PluginError, match="reads a form"):
        Route(name="POST /x", handler=describe, request=Form, body=body)
