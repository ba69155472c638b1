"""Requests share the worker process: turns of owners, limits of a request, clients that leave."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tiny.inputs import leaked_shared_memory
from tiny.pictures import picture, saved
from tiny.vision import IDS, make_vision

from ostro.core.errors import ContextLengthExceeded, Overloaded, RequestError
from ostro.core.ipc.frames import map_arrays
from ostro.core.media import worker as module
from ostro.core.media.process import (
    MeasureRequest,
    MediaSource,
    Message,
    PlaceRequest,
    PrepareRequest,
)
from ostro.core.media.worker import SECONDS, TURN, MediaWorker, Usage
from ostro.core.messages.arrays import Array
from ostro.core.messages.prompt import Prompt
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.turns import OWNER

PLACE = IDS["<|image_pad|>"]
LARGE = [saved(picture(i, 64, 64)) for i in range(4)]
SMALL = saved(picture(9, 16, 8))


class Recorded(MediaWorker):
    """A media worker that notes whose items it makes, and can wait before the next item.

    slow: seconds of its clock by the owner and the type of a message; others take none.
    """

    def __init__(self, *arguments: Any) -> None:
        self.now, self.took = 0.0, 0.0
        super().__init__(*arguments, clock=lambda: self.now)
        self.slow, self.made = dict[tuple[str, type[Message]], float](), list[str]()
        self.waiting, self.proceed = threading.Event(), threading.Event()
        self.proceed.set()

    def _ask(self, usage: Usage, message: Message, kind: type[Any]) -> Any:
        if isinstance(message, PrepareRequest):
            self.waiting.set()
            assert self.proceed.wait(60)
        self.took = self.slow.get((usage.owner, type(message)), 0.0)
        found = super()._ask(usage, message, kind)
        if isinstance(message, PrepareRequest):
            self.made.append(usage.owner)
        return found

    def _exchange(self, data: bytes, deadline: float) -> bytes:
        reply = super()._exchange(data, deadline)
        self.now += self.took
        return reply


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision(tmp_path_factory.mktemp("models") / "vision")


@pytest.fixture
def worker(folder: Path) -> Iterator[Recorded]:
    """A worker that leaves nothing in shared memory."""
    before = leaked_shared_memory()
    raw = msgspec.json.decode((folder / "config.json").read_bytes())
    inputs = "ostro.architectures.qwen2_5_vl.inputs:Inputs"
    made = Recorded(inputs, raw, folder)
    yield made
    made.proceed.set()
    made.close()
    gc.collect()
    assert leaked_shared_memory() == before


def images(*files: bytes) -> list[MediaSource]:
    return [MediaSource("image", data) for data in files]


def prepare(worker: MediaWorker, *files: bytes, **options: Any) -> Prompt:
    return worker.prepare([7, *[PLACE, 8] * len(files)], images(*files), **options)


def owned(owner: str, work: Callable[[], Any]) -> Callable[[], Any]:
    """Work in a context of its own with this owner."""
    context = copy_context()
    context.run(OWNER.set, owner)
    return lambda: context.run(work)


def test_another_owner_waits_for_one_item_only(
    worker: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.slow["a", PrepareRequest] = TURN
    queued = threading.Event()
    submit = worker._turns.submit

    def note(owner: str, work: Callable[[], Any]) -> Any:
        future = submit(owner, work)
        if owner == "b":
            queued.set()
        return future

    monkeypatch.setattr(worker._turns, "submit", note)
    with ThreadPoolExecutor(2) as threads:
        worker.proceed.clear()
        first = threads.submit(owned("a", lambda: prepare(worker, *LARGE)))
        assert worker.waiting.wait(60)
        second = threads.submit(owned("b", lambda: prepare(worker, SMALL)))
        assert queued.wait(60)
        worker.proceed.set()
        assert second.result(60).items[0].rows == 2
        assert [item.rows for item in first.result(60).items] == [64] * 4
    assert worker.made == ["a", "b", "a", "a", "a"]


def test_a_turn_ends_after_its_time(worker: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Media that take less are prepared in one turn."""
    turns = list[str]()
    submit = worker._turns.submit

    def note(owner: str, work: Callable[[], Any]) -> Any:
        turns.append(owner)
        return submit(owner, work)

    monkeypatch.setattr(worker._turns, "submit", note)
    prepare(worker, *LARGE)
    assert len(turns) == 1
    worker.slow["", PrepareRequest] = 0.6 * TURN
    prepare(worker, *LARGE)
    assert len(turns) == 1 + 2
    worker.slow["", MeasureRequest] = 0.6 * TURN
    prepare(worker, *LARGE)
    assert len(turns) == 1 + 2 + 4


def test_nothing_is_decoded_for_a_client_that_has_left(worker: Recorded) -> None:
    worker.slow["", PrepareRequest] = TURN

    async def leave() -> None:
        worker.proceed.clear()
        task = asyncio.create_task(worker.run(lambda: prepare(worker, *LARGE)))
        assert await asyncio.to_thread(worker.waiting.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        worker.proceed.set()
        OWNER.set("b")
        for _ in LARGE:  # turns in which the others would be decoded
            assert (await worker.run(lambda: prepare(worker, SMALL))).items

    asyncio.run(leave())
    assert worker.made.count("b") == len(LARGE) and worker.made.count("") <= 1


def test_waiting_requests_fail_when_the_worker_is_closed(worker: Recorded) -> None:
    async def close() -> list[Any]:
        worker.proceed.clear()
        runs = [worker.run(lambda: prepare(worker, SMALL)) for _ in range(5)]
        tasks = [asyncio.create_task(run) for run in runs]
        assert await asyncio.to_thread(worker.waiting.wait, 60)
        worker.close()
        worker.proceed.set()
        late = worker.run(lambda: prepare(worker, SMALL))
        return await asyncio.gather(*tasks, late, return_exceptions=True)

    errors = asyncio.run(close())
    assert [type(error) for error in errors] == [Overloaded] * 6
    assert all("shutting down" in str(error) for error in errors)


def test_large_media_are_refused_before_one_is_decoded(
    worker: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PIXELS", 3 * 64 * 64)
    with pytest.raises(RequestError, match="0 million pixels together; the limit is 0") as caught:
        prepare(worker, *LARGE)
    assert caught.value.param == "messages" and worker.made == []
    assert prepare(worker, *LARGE[:3]).items


def test_long_prompts_are_refused_before_an_image_is_decoded(worker: Recorded) -> None:
    """The function gets the tokens that the prompt has in the end."""
    lengths = list[int]()

    def refuse(length: int) -> None:
        lengths.append(length)
        raise ContextLengthExceeded("too long")

    with pytest.raises(ContextLengthExceeded, match="too long"):
        prepare(worker, *LARGE, SMALL, check=refuse)
    assert worker.made == []
    assert lengths == [len(prepare(worker, *LARGE, SMALL).tokens)]


def test_the_arrays_of_a_request_have_a_limit(
    worker: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = prepare(worker, LARGE[0]).items[0].nbytes
    assert used > 64 * 64 * 3
    monkeypatch.setattr(module, "MAX_ARRAYS", 2 * used)
    before = leaked_shared_memory()
    with pytest.raises(RequestError, match="the prepared media of the request have more than"):
        prepare(worker, *LARGE)
    assert leaked_shared_memory() == before
    assert len(worker.made) == 1 + 3


def test_equal_images_are_decoded_once_and_share_their_memory(worker: Recorded) -> None:
    expected = prepare(worker, LARGE[0], SMALL, LARGE[0])
    before, worker.made = len(leaked_shared_memory()), []
    copies = [bytes(bytearray(LARGE[0])) for _ in range(40)]
    prompt = prepare(worker, *copies)
    assert len(worker.made) == 1 and len(leaked_shared_memory()) == before + 1
    assert [item.rows for item in prompt.items] == [64] * 40
    assert {item.key for item in prompt.items} == {expected.items[0].key}
    assert expected.items[2].spans == ((69, 64),)
    request = TokenRequest(id="1", tokens=prompt.tokens, sampling=Sampling(), items=prompt.items)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=TokenRequest)
    received = map_arrays(sent, Array.read)
    arrays = [item.arrays["patches"] for item in received.items]
    assert all(array is arrays[0] for array in arrays) and len(leaked_shared_memory()) == before
    own = expected.items[0].arrays["patches"].numpy()
    assert np.array_equal(arrays[0].numpy(), own)


def test_the_time_limit_is_that_of_the_whole_request(worker: Recorded) -> None:
    """A message takes 49 s: the process does three of them."""
    assert prepare(worker, LARGE[0]).items
    pid = worker.pid
    for kind in (MeasureRequest, PrepareRequest, PlaceRequest):
        worker.slow["", kind] = 0.41 * SECONDS
    assert prepare(worker, SMALL).items
    worker.made = []
    with pytest.raises(RequestError, match="took longer than 120 s"):
        prepare(worker, *LARGE[:2])
    assert len(worker.made) == 1 and worker.pid == pid
