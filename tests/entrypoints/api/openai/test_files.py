"""Files, uploads and batches over HTTP, with the official client."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from echo.server import Running, Start, make_state

from ostro.entrypoints.operations.access.keys import KeyRing, sha256_of
from ostro.entrypoints.operations.access.quotas import Quotas
from ostro.entrypoints.operations.executor import LOW_PRIORITY, make_executor

URL = "/v1/chat/completions"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "state"


@pytest.fixture(scope="module")
def server(start: Start, folder: Path) -> Running:
    return start(state=make_state(str(folder)))


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    ) as found:
        yield found


def upload(client: openai.OpenAI, data: bytes, name: str = "a.txt", **more: Any) -> Any:
    return client.files.create(file=(name, data), **{"purpose": "user_data", **more})


def test_the_client_uploads_reads_and_deletes_a_file(client: openai.OpenAI, folder: Path) -> None:
    data = bytes(range(256)) * 10_000  # above 1 MB the form is spooled
    file = upload(client, data, "ä b.bin")
    assert (file.bytes, file.filename, file.purpose) == (len(data), "ä b.bin", "user_data")
    assert file.expires_at == file.created_at + 86400
    assert client.files.retrieve(file.id) == file
    response = client.files.content(file.id)
    assert response.content == data
    assert response.response.headers["content-disposition"].startswith("attachment; filename*=")
    assert client.files.delete(file.id).deleted
    for method in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            method(file.id)
        assert caught.value.code == "not_found"
    assert not list((folder / "blobs").iterdir())


def test_the_client_lists_files_page_by_page(client: openai.OpenAI) -> None:
    made = [upload(client, b"x", purpose="vision").id for _ in range(7)]
    found = client.files.list(limit=3, purpose="vision")
    assert len(found.data) == 3 and found.has_more
    assert [file.id for file in found] == made[::-1]  # fetches further pages
    ascending = client.files.list(order="asc", purpose="vision")
    assert [file.id for file in ascending] == made
    for file in client.files.list(limit=2, purpose="vision"):
        client.files.delete(file.id)  # cursors of deleted files stay valid
    assert not client.files.list(purpose="vision").data


def test_a_file_expires_as_requested(client: openai.OpenAI) -> None:
    file = upload(client, b"x", expires_after={"anchor": "created_at", "seconds": 3600})
    assert file.expires_at == file.created_at + 3600


def test_the_end_of_a_file_may_be_json(server: Running) -> None:
    """The OpenAPI document describes the field as an object."""

    def create(end: str) -> httpx.Response:
        fields = {"purpose": "user_data", "expires_after": end}
        return server.http.post("/v1/files", data=fields, files={"file": ("a", b"x")})

    file = create('{"anchor": "created_at", "seconds": 3600}').json()
    assert file["expires_at"] == file["created_at"] + 3600
    for end in ('{"anchor": "created_at"}', "{", "3600"):
        response = create(end)
        assert response.status_code == 400
        assert response.json()["error"]["param"].startswith("expires_after")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=10001", "limit"),
        ("limit=x", "limit"),
        ("limit=", "limit"),
        ("limit=5&limit=6", "limit"),
        ("order=up", "order"),
        ("order=", "order"),
        ("after=banana", "after"),
        ("after=", "after"),
        ("after=file-%00", None),
        ("color=red", "color"),
    ],
)
def test_invalid_queries_are_refused(server: Running, query: str, param: str | None) -> None:
    response = server.http.get(f"/v1/files?{query}")
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert server.http.get("/v1/files?limit=10000&order=asc").status_code == 200


@pytest.mark.parametrize(
    ("fields", "files", "param"),
    [
        ({"purpose": "user_data"}, {}, "file"),
        ({}, {"file": ("a", b"x")}, "purpose"),
        ({"purpose": "banana"}, {"file": ("a", b"x")}, "purpose"),
        ({"purpose": "batch_output"}, {"file": ("a", b"x")}, "purpose"),
        ({"purpose": "vision", "color": "red"}, {"file": ("a", b"x")}, "color"),
        ({"purpose": ["vision", "batch"]}, {"file": ("a", b"x")}, "purpose"),
        ({"purpose": "vision"}, {"file": ("x" * 600, b"x")}, "filename"),
        (
            {"purpose": "vision", "expires_after[anchor]": "created_at"},
            {"file": ("a", b"x")},
            "expires_after.seconds",
        ),
        (
            {
                "purpose": "vision",
                "expires_after[anchor]": "created_at",
                "expires_after[seconds]": "60",
            },
            {"file": ("a", b"x")},
            "expires_after.seconds",
        ),
    ],
)
def test_invalid_forms_are_refused(
    server: Running, fields: dict[str, Any], files: dict[str, Any], param: str
) -> None:
    sent = files or {"other": ("a", b"x")}
    response = server.http.post("/v1/files", data=fields, files=sent)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == (param if files else "other") and error["message"]
    good = server.http.post("/v1/files", data={"purpose": "vision"}, files={"file": ("a", b"x")})
    assert good.status_code == 200
    server.http.delete(f"/v1/files/{good.json()['id']}")


@pytest.mark.parametrize("id", ["file-1", "..%2f..%2fstate.db", "%00", "a" * 5000])
def test_unknown_ids_are_not_found(server: Running, id: str) -> None:
    for path in (f"/v1/files/{id}", f"/v1/files/{id}/content", f"/v1/batches/{id}"):
        assert server.http.get(path).status_code in (400, 404, 414, 431)
    assert server.http.get("/v1/files?limit=1").status_code == 200


def test_the_client_uploads_a_file_in_parts(client: openai.OpenAI, folder: Path) -> None:
    before = len(list((folder / "blobs").iterdir()))
    data = b"0123456789" * 100
    upload = client.uploads.create(
        bytes=len(data), filename="b.bin", mime_type="text/plain", purpose="user_data"
    )
    assert upload.status == "pending"
    parts = [client.uploads.parts.create(upload.id, data=data[n : n + 400]) for n in (0, 400, 800)]
    ids, md5 = [part.id for part in parts], hashlib.md5(data).hexdigest()
    with pytest.raises(openai.BadRequestError) as caught:
        client.uploads.complete(upload.id, part_ids=ids, md5="0" * 32)
    assert caught.value.param == "md5"
    done = client.uploads.complete(upload.id, part_ids=ids, md5=md5)
    assert done.status == "completed" and done.file is not None
    assert client.files.content(done.file.id).content == data
    client.files.delete(done.file.id)
    other = client.uploads.create(
        bytes=5, filename="b.bin", mime_type="text/plain", purpose="user_data"
    )
    client.uploads.parts.create(other.id, data=b"01")
    assert client.uploads.cancel(other.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="cancelled"):
        client.uploads.parts.create(other.id, data=b"01")
    assert len(list((folder / "blobs").iterdir())) == before
    helper = client.uploads.upload_file_chunked(
        file=data, filename="c.bin", bytes=len(data), mime_type="text/plain", purpose="user_data",
        part_size=300,
    )  # fmt: skip
    assert helper.file is not None and helper.file.bytes == len(data)


def request_line(id: str, text: str, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    body = {"model": "echo", "messages": messages, "max_tokens": 20, **body}
    return {"custom_id": id, "method": "POST", "url": URL, "body": body}


def wait_for(client: openai.OpenAI, id: str) -> Any:
    limit = time.monotonic() + 120
    while (batch := client.batches.retrieve(id)).completed_at is None:
        assert time.monotonic() < limit and batch.failed_at is None, batch
        time.sleep(0.05)
    return batch


def results(client: openai.OpenAI, id: str | None) -> dict[str, Any]:
    assert id is not None
    lines = [json.loads(line) for line in client.files.content(id).text.splitlines()]
    return {line["custom_id"]: line for line in lines}


def test_a_batch_gives_what_single_requests_give(client: openai.OpenAI, server: Running) -> None:
    lines = [request_line(f"c{n}", f"hello {n}") for n in range(5)]
    lines.append(request_line("bad", "x", temperature=-1))
    lines.append(request_line("lost", "x", model="nothing"))
    data = "\n".join(json.dumps(line) for line in lines).encode()
    file = client.files.create(file=io.BytesIO(data), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint=URL, completion_window="24h", metadata={"a": "b"}
    )
    assert batch.status == "validating" and batch.metadata == {"a": "b"}
    done = wait_for(client, batch.id)
    assert done.status == "completed" and done.request_counts is not None
    assert done.request_counts.to_dict() == {"total": 7, "completed": 5, "failed": 2}
    assert done.usage is not None and done.usage.total_tokens > 0
    good, bad = results(client, done.output_file_id), results(client, done.error_file_id)
    assert good.keys() == {f"c{n}" for n in range(5)} and bad.keys() == {"bad", "lost"}
    for n in range(5):
        body = good[f"c{n}"]["response"]["body"]
        alone = server.chat(f"hello {n}", model="echo", max_tokens=20).json()
        assert body["choices"] == alone["choices"] and body["usage"] == alone["usage"]
    for id, status, body in (("bad", 400, lines[5]["body"]), ("lost", 404, lines[6]["body"])):
        alone = server.post(URL, **body)
        assert alone.status_code == status == bad[id]["response"]["status_code"]
        assert bad[id]["response"]["body"] == alone.json()
    assert client.batches.list(limit=1).data[0].id == batch.id
    documents = server.app.state.operations.documents
    assert documents.batches.models() == documents.batches_of("x").models() == ["echo"]
    runner = documents.batch_runner
    assert runner.serves("echo") and not runner.serves("nothing")
    assert runner.max_body("/v1/embeddings") > runner.max_body(URL) > 1000
    with pytest.raises(openai.BadRequestError, match="completed"):
        client.batches.cancel(batch.id)
    metrics = server.http.get("/metrics").text
    counts = [each for each in metrics.splitlines() if each.startswith("vllm:generation_tokens_")]
    assert counts and all(f'route="{URL}"' in each for each in counts), counts


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"color": "red"}, "color"),
        ({"input_file_id": "file-1"}, "input_file_id"),
    ],
)
def test_invalid_batches_are_refused(server: Running, fields: dict[str, Any], param: str) -> None:
    body = {"input_file_id": "file-1", "endpoint": URL, "completion_window": "24h", **fields}
    response = server.post("/v1/batches", **body)
    assert response.status_code == (404 if param == "input_file_id" else 400), response.text
    assert response.json()["error"]["param"] == param


@pytest.fixture(scope="module")
def stateless(start: Start) -> Running:
    return start()


def test_without_a_store_everything_else_works(stateless: Running) -> None:
    for method, path in (
        ("GET", "/v1/files"),
        ("GET", "/v1/files/file-1"),
        ("GET", "/v1/batches"),
    ):
        response = stateless.http.request(method, path)
        assert response.status_code == 400, response.text
        assert "--store" in response.json()["error"]["message"]
    sent = stateless.http.post(
        "/v1/files", data={"purpose": "vision"}, files={"file": ("a", b"x" * 100)}
    )
    assert sent.status_code == 400 and sent.json()["error"]["code"] == "unsupported"
    image = stateless.post("/v1/images/generations", prompt="a", response_format="url")
    error = image.json()["error"]
    assert image.status_code == 400 and error["param"] == "response_format", image.text
    assert error["code"] == "unsupported" and "use b64_json" in error["message"]
    assert stateless.chat("hi").status_code == 200


def test_a_damaged_store_gives_503_and_chat_goes_on(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    (folder / "state.db").write_bytes(b"damaged" * 1000)
    server = start(state=make_state(str(folder)))
    response = server.http.get("/v1/files")
    assert response.status_code == 503 and "retry-after" in response.headers
    assert response.json()["error"]["code"] == "store_unavailable"
    assert "not a database" in response.text
    assert str(tmp_path) not in response.text and str(folder) in caplog.text
    assert server.chat("hi").status_code == 200


@pytest.fixture
def keyed(start: Start, tmp_path: Path) -> tuple[Running, KeyRing]:
    """A server with the keys ann, bob and eve; eve may use no model."""
    file = tmp_path / "keys.toml"
    file.touch(mode=0o600)
    names = {"ann": "", "bob": "", "eve": 'models = ["other"]'}
    lines = [
        f'[[keys]]\nname = "{name}"\nsha256 = "{sha256_of(name)}"\n{more}'
        for name, more in names.items()
    ]
    file.write_text("\n".join(lines))
    ring = KeyRing(file=file)
    return start(ring=ring, state=make_state(str(tmp_path / "state"))), ring


def test_another_key_finds_no_file_and_no_batch(keyed: tuple[Running, KeyRing]) -> None:
    server, ring = keyed
    seen: list[Any] = []
    submit = server.echo.submit
    server.echo.submit = lambda request: (seen.append(request), submit(request))[1]  # type: ignore[method-assign,assignment,func-returns-value]
    ann, bob, eve = (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key=name, max_retries=0)
        for name in ("ann", "bob", "eve")
    )
    data = json.dumps(request_line("a", "hello")).encode()
    own = ann.files.create(file=("a.jsonl", data), purpose="batch")
    batch = ann.batches.create(input_file_id=own.id, endpoint=URL, completion_window="24h")
    done = wait_for(ann, batch.id)
    assert results(ann, done.output_file_id).keys() == {"a"}
    assert [request.priority for request in seen] == [LOW_PRIORITY]
    for refused in (
        lambda: bob.files.retrieve(own.id),
        lambda: bob.files.content(done.output_file_id or ""),
        lambda: bob.files.delete(own.id),
        lambda: bob.batches.retrieve(batch.id),
        lambda: bob.batches.cancel(batch.id),
        lambda: bob.batches.create(input_file_id=own.id, endpoint=URL, completion_window="24h"),
    ):
        with pytest.raises(openai.NotFoundError):
            refused()
    assert not bob.files.list().data and not bob.batches.list().data
    theirs = eve.files.create(file=("a.jsonl", data), purpose="batch")
    made = eve.batches.create(input_file_id=theirs.id, endpoint=URL, completion_window="24h")
    [error] = results(eve, wait_for(eve, made.id).error_file_id).values()
    assert error["response"]["status_code"] in (403, 404), error
    ring.keys = {digest: key for digest, key in ring.keys.items() if key.name != "bob"}
    operations: Any = None  # no request gets that far
    execute = make_executor([], operations, ring, Quotas())
    status, body = asyncio.run(execute(URL, b"{}", "bob"))
    assert status == 401 and json.loads(body)["error"]["code"] == "invalid_api_key"
    for client in (ann, bob, eve):
        client.close()
