"""Files and uploads as operations."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ostro.core.errors import DocumentNotFound, RequestError, StoreError, Unsupported
from ostro.core.plugins.manager import PluginManager
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.documents import uploads as uploads_module
from ostro.entrypoints.operations.documents.files import (
    ExpiresAfter,
    File,
    FileListRequest,
    FileRequest,
    Files,
)
from ostro.entrypoints.operations.documents.state import State, open_state
from ostro.entrypoints.operations.documents.uploads import (
    CompleteUploadRequest,
    Upload,
    UploadRequest,
    Uploads,
)

ANN, BOB = Caller(name="ann"), Caller(name="bob")
DAY = 86400
Work = Callable[[Files, Uploads], Awaitable[Any]]


@pytest.fixture(params=["sqlite", "memory"])
def run(
    request: pytest.FixtureRequest, plugins: PluginManager, tmp_path: Path
) -> Callable[[Work], Any]:
    """Run a coroutine with files and uploads in a store of 30 days."""

    def start(work: Work) -> Any:
        location = "memory" if request.param == "memory" else str(tmp_path / "state")

        async def main() -> Any:
            state = open_state(location, 30.0 * DAY, plugins)
            files = Files(state)
            try:
                return await work(files, Uploads(state, files))
            finally:
                await state.close()

        return asyncio.run(main())

    return start


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def describe(name: str = "a.txt", purpose: Any = "user_data", **more: Any) -> FileRequest:
    return FileRequest(filename=name, purpose=purpose, **more)


async def content(files: Files, id: str, caller: Caller) -> bytes:
    _, data = await files.content(id, caller)
    return b"".join([each async for each in data])


async def code_of(work: Awaitable[Any]) -> str:
    with pytest.raises(DocumentNotFound) as caught:
        await work
    return str(caught.value)


def test_a_file_comes_back_to_its_owner_only(run) -> None:
    async def work(files: Files, _: Uploads) -> None:
        file = await files.create(describe(), chunks(b"one ", b"two"), ANN)
        assert (file.filename, file.purpose, file.nbytes) == ("a.txt", "user_data", 7)
        assert file.expires == file.created + 30 * DAY
        assert await files.get(file.id, ANN) == file
        assert await content(files, file.id, ANN) == b"one two"
        missing = file.id[:-1] + ("0" if file.id[-1] != "0" else "1")
        for method in (files.get, files.content, files.delete):
            other, none = await code_of(method(file.id, BOB)), await code_of(method(missing, ANN))
            assert other.replace(file.id, "") == none.replace(missing, "")
        assert not (await files.list(FileListRequest(), BOB)).files
        await files.delete(file.id, ANN)
        await code_of(files.get(file.id, ANN))

    run(work)


def test_an_empty_file_and_one_of_many_chunks(run) -> None:
    async def work(files: Files, _: Uploads) -> None:
        empty = await files.create(describe(), chunks(), ANN)
        assert empty.nbytes == 0 and await content(files, empty.id, ANN) == b""
        large = await files.create(describe(), chunks(*[b"ab" * 300_000] * 5), ANN)
        assert await content(files, large.id, ANN) == b"ab" * 1_500_000

    run(work)


def test_files_are_listed_by_purpose_and_page(run) -> None:
    async def work(files: Files, _: Uploads) -> None:
        made = [
            await files.create(describe(str(n), "batch" if n % 3 == 0 else "vision"), chunks(), ANN)
            for n in range(10)
        ]
        everything = await files.list(FileListRequest(), ANN)
        assert everything.files == made[::-1] and not everything.has_more
        for order, step in (("asc", 1), ("desc", -1)):
            expected, seen = [made[n] for n in (0, 3, 6, 9)][::step], list[File]()
            more = True
            while more:
                page = await files.list(
                    FileListRequest(
                        purpose="batch", limit=2, order=order, after=seen[-1].id if seen else None
                    ),
                    ANN,
                )
                assert len(page.files) == 2
                seen, more = seen + page.files, page.has_more
            assert seen == expected
        with pytest.raises(RequestError, match="not an id"):
            await files.list(FileListRequest(after="banana"), ANN)

    run(work)


def test_a_file_that_is_too_long_leaves_nothing(run, tmp_path: Path) -> None:
    async def work(files: Files, _: Uploads) -> None:
        with pytest.raises(RequestError, match="exceeds 10 bytes"):
            await files.create(describe(), chunks(b"12345", b"123456"), ANN, limit=10)
        await files.create(describe(), chunks(b"12345", b"12345"), ANN, limit=10)
        assert len((await files.list(FileListRequest(), ANN)).files) == 1

    run(work)
    blobs = tmp_path / "state/blobs"
    assert not blobs.exists() or len(list(blobs.iterdir())) == 1


def test_a_file_ends_when_its_request_says(run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(files: Files, _: Uploads) -> None:
        request = describe(expires_after=ExpiresAfter(anchor="created_at", seconds=3600))
        file = await files.create(request, chunks(b"x"), ANN)
        assert file.expires == file.created + 3600

    run(work)


@pytest.mark.parametrize(
    "fields",
    [
        {"purpose": "batch_output"},
        {"purpose": None},
        {"filename": ""},
        {"filename": "x" * 513},
        {"expires_after": {"anchor": "created_at", "seconds": 3599}},
        {"expires_after": {"anchor": "created_at", "seconds": 2_592_001}},
        {"expires_after": {"anchor": "used_at", "seconds": 3600}},
        {"metadata": {}},
    ],
)
def test_invalid_descriptions_are_refused(fields: dict[str, Any]) -> None:
    good = {"filename": "a", "purpose": "batch"}
    msgspec.convert(good, FileRequest)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**good, **fields}, FileRequest)


def test_a_file_is_deleted_between_its_description_and_its_content(run) -> None:
    async def work(files: Files, _: Uploads) -> None:
        file = await files.create(describe(), chunks(b"x"), ANN)
        found = await files.state.get("ann", "file", file.id, File)
        await files.delete(file.id, ANN)
        with pytest.raises(DocumentNotFound):
            await files.state.open_blob(found.document)

    run(work)


def test_no_blob_is_left_if_the_document_cannot_be_written(run, tmp_path: Path) -> None:
    async def work(files: Files, _: Uploads) -> None:
        async def fail(*args: Any, **more: Any) -> int:
            raise StoreError("the disk is full")

        files.state.put = fail  # type: ignore[method-assign]
        with pytest.raises(StoreError):
            await files.create(describe(), chunks(b"x"), ANN)

    run(work)
    blobs = tmp_path / "state/blobs"
    assert not blobs.exists() or not list(blobs.iterdir())


def announce(size: int = 10, **more: Any) -> UploadRequest:
    fields = {"filename": "b.bin", "purpose": "user_data", "mime_type": "text/plain", **more}
    return UploadRequest(bytes=size, **fields)


def complete(*parts: Any, md5: str | None = None) -> CompleteUploadRequest:
    return CompleteUploadRequest(part_ids=[part.id for part in parts], md5=md5)


def test_parts_are_joined_in_the_order_of_the_request(run, tmp_path: Path) -> None:
    async def work(files: Files, uploads: Uploads) -> None:
        upload = await uploads.create(announce(), ANN)
        assert upload.status == "pending" and upload.expires == upload.created + 3600
        last = await uploads.add(upload.id, chunks(b"6789"), ANN)
        first = await uploads.add(upload.id, chunks(b"012", b"345"), ANN)
        md5 = hashlib.md5(b"0123456789").hexdigest().upper()
        done = await uploads.complete(upload.id, complete(first, last, md5=md5), ANN)
        assert done.status == "completed" and done.file is not None
        assert await content(files, done.file.id, ANN) == b"0123456789"
        assert done.file == await files.get(done.file.id, ANN)
        for again in (
            uploads.complete(upload.id, complete(first, last), ANN),
            uploads.cancel(upload.id, ANN),
            uploads.add(upload.id, chunks(b"x"), ANN),
        ):
            with pytest.raises(RequestError, match="the upload is completed"):
                await again
        assert len((await files.list(FileListRequest(), ANN)).files) == 1

    run(work)
    blobs = tmp_path / "state/blobs"
    assert not blobs.exists() or len(list(blobs.iterdir())) == 1


def test_wrong_parts_are_refused_and_the_upload_goes_on(run) -> None:
    async def work(files: Files, uploads: Uploads) -> None:
        upload = await uploads.create(announce(), ANN)
        part = await uploads.add(upload.id, chunks(b"01234"), ANN)
        rest = await uploads.add(upload.id, chunks(b"56789"), ANN)
        other = await uploads.create(announce(), ANN)
        foreign = await uploads.add(other.id, chunks(b"56789"), ANN)
        for request, text in (
            (complete(part), "5 bytes, expected 10"),
            (complete(part, part), "twice"),
            (complete(part, foreign), "has no part"),
            (complete(part, rest, md5="0" * 32), "the MD5 is 781e5e245d69b566979b86e28d23f2c7"),
        ):
            with pytest.raises(RequestError, match=text):
                await uploads.complete(upload.id, request, ANN)
        with pytest.raises(RequestError, match="exceeds 0 bytes"):
            await uploads.add(upload.id, chunks(b"x"), ANN)
        assert not (await files.list(FileListRequest(), ANN)).files
        await uploads.complete(upload.id, complete(part, rest), ANN)

    run(work)


def test_an_upload_has_a_bounded_number_of_parts(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one is a document and a file, even one without a byte."""
    monkeypatch.setattr(uploads_module, "MAX_PARTS", 3)

    async def work(_: Files, uploads: Uploads) -> None:
        upload = await uploads.create(announce(10), ANN)
        with pytest.raises(RequestError, match="the part is empty"):
            await uploads.add(upload.id, chunks(), ANN)
        for _ in range(3):
            await uploads.add(upload.id, chunks(b"x"), ANN)
        with pytest.raises(RequestError, match="has 3 parts, the most"):
            await uploads.add(upload.id, chunks(b"x"), ANN)

    run(work)
    blobs = tmp_path / "state/blobs"
    assert not blobs.exists() or len(list(blobs.iterdir())) == 3


def test_parts_that_arrive_together_do_not_exceed_the_size(run) -> None:
    async def work(_: Files, uploads: Uploads) -> None:
        upload = await uploads.create(announce(10), ANN)
        sent = [uploads.add(upload.id, chunks(b"0123"), ANN) for _ in range(5)]
        results = await asyncio.gather(*sent, return_exceptions=True)
        assert sum(isinstance(each, RequestError) for each in results) == 3

    run(work)


def test_another_owner_cannot_use_an_upload(run) -> None:
    async def work(_: Files, uploads: Uploads) -> None:
        upload = await uploads.create(announce(), ANN)
        part = await uploads.add(upload.id, chunks(b"0123456789"), ANN)
        for theirs in (
            uploads.add(upload.id, chunks(b"x"), BOB),
            uploads.complete(upload.id, complete(part), BOB),
            uploads.cancel(upload.id, BOB),
        ):
            with pytest.raises(DocumentNotFound):
                await theirs
        own = await uploads.create(announce(), BOB)
        with pytest.raises(RequestError, match="has no part"):
            await uploads.complete(own.id, complete(part), BOB)

    run(work)


def test_a_cancelled_upload_leaves_no_part(run, tmp_path: Path) -> None:
    async def work(_: Files, uploads: Uploads) -> Upload:
        upload = await uploads.create(announce(), ANN)
        await uploads.add(upload.id, chunks(b"01234"), ANN)
        return await uploads.cancel(upload.id, ANN)

    assert run(work).status == "cancelled"
    blobs = tmp_path / "state/blobs"
    assert not blobs.exists() or not list(blobs.iterdir())


def test_without_a_store_files_are_refused() -> None:
    async def work() -> None:
        with pytest.raises(Unsupported, match="no store"):
            await Files(State()).create(describe(), chunks(b"x"), ANN)

    asyncio.run(work())
