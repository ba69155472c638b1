"""The process that prepares media: what it makes, how it dies, and what it leaves behind."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import soundfile
from tiny.inputs import hostile, leaked_shared_memory
from tiny.pictures import picture, saved
from tiny.vision import IDS, make_vision

from ostro.architectures.qwen2_5_vl.inputs import Inputs
from ostro.core.errors import (
    ConfigError,
    InsufficientMemory,
    OstroError,
    Overloaded,
    RequestError,
    Unsupported,
)
from ostro.core.media.process import (
    MEMORY,
    ErrorReply,
    MediaSource,
    PrepareRequest,
    answer,
    make_item,
)
from ostro.core.media.worker import SECONDS, MediaWorker
from ostro.core.messages.arrays import Array
from ostro.core.messages.prompt import Prompt

PLACE = IDS["<|image_pad|>"]
LARGE = saved(picture(1, 64, 64))
SMALL = saved(picture(2, 16, 8))
Make = Callable[..., MediaWorker]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision(tmp_path_factory.mktemp("models") / "vision")


@pytest.fixture
def raw(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode((folder / "config.json").read_bytes())
    return found


@pytest.fixture
def make(folder: Path, raw: dict[str, Any]) -> Iterator[Make]:
    """Open workshops whose clock stands still; none leaves anything in shared memory."""
    before, opened = leaked_shared_memory(), list[MediaWorker]()

    def begin(inputs: str = "tiny.inputs:Hostile", **config: Any) -> MediaWorker:
        opened.append(MediaWorker(inputs, {**raw, **config}, folder, clock=lambda: 0.0))
        return opened[-1]

    yield begin
    for each in opened:
        each.close()
    gc.collect()
    assert leaked_shared_memory() == before


def alive(pid: int | None) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wav() -> bytes:
    file = BytesIO()
    soundfile.write(file, np.zeros(1600, np.float32), 16000, format="WAV")
    return file.getvalue()


def reading_clock() -> Callable[[], float]:
    """A clock that each reading moves: it passes a deadline after the third reading."""
    times = count()
    return lambda: next(times) * 0.6 * SECONDS


def late_after(patch: pytest.MonkeyPatch, shop: MediaWorker, messages: int) -> None:
    """Let a clock pass the time limit once the worker process has got so many messages."""
    now, sent, send = [0.0], count(1), shop._worker.send

    def note(data: bytes, deadline: float) -> None:
        send(data, deadline)
        now[0] = 2 * SECONDS if next(sent) >= messages else 0.0

    patch.setattr(shop._worker, "send", note)
    patch.setattr(shop._worker, "clock", lambda: now[0])


def good(shop: MediaWorker, data: bytes = SMALL) -> Prompt:
    return shop.prepare([7, PLACE, 8], [MediaSource("image", data)])


def test_a_process_prepares_what_is_prepared_here(
    make: Make, folder: Path, raw: dict[str, Any]
) -> None:
    sources = [MediaSource("image", LARGE), MediaSource("image", SMALL)]
    tokens = [7, PLACE, 8, PLACE, 9]
    there = make().prepare(tokens, sources)
    inputs = Inputs(raw, folder)
    here = inputs.expand_placeholders(tokens, [make_item(inputs, each) for each in sources])
    assert there.tokens == here.tokens and there.positions == here.positions
    assert [item.spans for item in there.items] == [((1, 64),), ((66, 2),)]
    for mine, other in zip(there.items, here.items, strict=True):
        assert mine.key == other.key and mine.cost == other.cost
        for name, array in mine.arrays.items():
            assert np.array_equal(array.numpy(), other.arrays[name].numpy())


@pytest.mark.process
def test_large_arrays_stay_in_shared_memory_until_read_or_lost(make: Make) -> None:
    before = len(leaked_shared_memory())
    prompt = good(make(), LARGE)
    array = prompt.items[0].arrays["patches"]
    assert array.file and not array.data and len(leaked_shared_memory()) == before + 1
    assert Path(array.file).stat().st_mode & 0o777 == 0o600
    assert array.numpy().shape == (256, 96) and len(leaked_shared_memory()) == before
    lost = good(make(), LARGE)
    assert len(leaked_shared_memory()) == before + 1
    del lost
    gc.collect()
    assert len(leaked_shared_memory()) == before


@pytest.mark.process
def test_the_worker_process_is_reused(make: Make) -> None:
    shop = make()
    good(shop)
    first = shop.pid
    good(shop, LARGE)
    assert shop.pid == first
    shop.close()
    assert not alive(first)
    with pytest.raises(Overloaded, match="shutting down"):
        good(shop)


@pytest.mark.process
def test_closing_does_not_wait(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = make()
    good(shop)
    sent = threading.Event()
    receive = shop._worker.receive

    def note(deadline: float) -> bytes:
        sent.set()
        return receive(deadline)

    monkeypatch.setattr(shop._worker, "receive", note)
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(good, shop, hostile("sleep"))
        assert sent.wait(60)
        shop.close()
        with pytest.raises(Overloaded):
            asking.result()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("deed", "kind", "said", "survives"),
    [
        ("leave", RequestError, "crashed the worker; send smaller ones", False),
        ("swell", RequestError, "exceeds the memory limit", True),
        ("fail", OstroError, "see the server's log", True),
    ],
)
def test_a_rejected_request_leaves_the_next_working(
    make: Make,
    deed: str,
    kind: type[OstroError],
    said: str,
    survives: bool,
    capfd: pytest.CaptureFixture[str],
) -> None:
    shop = make()
    expected = good(shop)
    first, before = shop.pid, leaked_shared_memory()
    with pytest.raises(kind, match=said) as caught:
        shop.prepare(
            [PLACE, PLACE], [MediaSource("image", LARGE), MediaSource("image", hostile(deed))]
        )
    assert caught.value.param == "messages" and caught.value.status == kind.status
    assert leaked_shared_memory() == before
    assert ("ZeroDivisionError: a bug" in capfd.readouterr().err) == (deed == "fail")
    assert good(shop) == expected
    assert (shop.pid == first) == survives


@pytest.mark.process
def test_what_libraries_print_is_no_reply(make: Make) -> None:
    assert good(make(), hostile("chatter")).items[0].rows == 15


def test_a_slow_worker_is_killed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = make()
    expected = good(shop)
    first = shop.pid
    with monkeypatch.context() as patch:
        late_after(patch, shop, 2)  # the header and the item
        with pytest.raises(RequestError, match="took longer than 120 s"):
            good(shop, hostile("sleep"))
    assert not alive(first)
    assert good(shop) == expected


@pytest.mark.process
@pytest.mark.parametrize("data", [SMALL, bytes(1 << 20)], ids=["read", "write"])
def test_a_process_that_stands_still_is_killed(
    make: Make, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    """A megabyte does not fit the pipe to it."""
    shop = make()
    good(shop)
    assert shop.pid is not None
    os.kill(shop.pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(shop._worker, "clock", reading_clock())
        with pytest.raises(RequestError, match="took longer"):
            good(shop, data)
    assert good(shop).items


@pytest.mark.process
def test_a_process_that_was_killed_meanwhile_is_replaced(make: Make) -> None:
    shop = make()
    expected = good(shop)
    first = shop.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    shop._worker.wait()
    assert good(shop) == expected


@pytest.mark.process
def test_a_config_of_any_size_reaches_the_process(make: Make) -> None:
    assert good(make(names=["x" * 100] * 5000)).items


@pytest.mark.process
def test_refusals_keep_their_kind(make: Make, folder: Path, raw: dict[str, Any]) -> None:
    shop = make()
    for sources, kind, said in (
        ([MediaSource("audio", wav())], Unsupported, "does not support audio"),
        ([MediaSource("image", b"GIF89a")], RequestError, "the image cannot be read"),
        ([MediaSource("image", SMALL)] * 2, RequestError, "1 of 2 media have no placeholder"),
        ([], RequestError, "item 1 of the prompt is image, got nothing"),
        ([MediaSource("image", SMALL)] * 65, RequestError, "65 media in one request"),
    ):
        with pytest.raises(kind, match=said):
            shop.prepare([7, PLACE], sources)
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json"):
        MediaWorker(shop.inputs, raw, folder / "elsewhere").prepare(
            [PLACE], [MediaSource("image", SMALL)]
        )
    assert good(shop).items


LIMITED = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (limit := int(sys.argv[1]), limit))
from ostro.core.media.worker import MediaWorker
worker = MediaWorker("", {}, Path())
print(*worker.look(sys.stdin.buffer.read()).shape)
print(*resource.prlimit(worker.pid, resource.RLIMIT_AS))
worker.close()
"""


@pytest.mark.process
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="reads the limits of a process")
@pytest.mark.parametrize(
    ("limit", "expected"),
    [(8 << 30, 8 << 30), (64 << 30, MEMORY), (resource.RLIM_INFINITY, MEMORY)],
)
def test_a_limit_on_the_memory_of_the_server_is_not_raised(limit: int, expected: int) -> None:
    command = [sys.executable, "-c", LIMITED, str(limit)]
    done = subprocess.run(command, input=SMALL, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert done.stdout.split() == [b"8", b"16", b"3", *[str(expected).encode()] * 2]


def test_room_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, folder: Path, raw: dict[str, Any]
) -> None:
    """A file that cannot be finished is not left, nor are those before it."""
    before, array = leaked_shared_memory(), Array.of(np.zeros(1 << 20, np.uint8))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, hard))
    try:
        with pytest.raises(InsufficientMemory, match=r"/dev/shm cannot store 1024 KiB"):
            array.share()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert leaked_shared_memory() == before
    share, done = Array.share, list[Array]()

    def once(mine: Array) -> Array:
        if done:
            raise InsufficientMemory("no room")
        done.append(share(mine))
        return done[0]

    monkeypatch.setattr(Array, "share", once)
    order = PrepareRequest(source=MediaSource("image", LARGE))
    refused = answer(lambda: Inputs(raw, folder), msgspec.msgpack.encode(order))
    assert isinstance(refused, ErrorReply) and refused.kind == "InsufficientMemory"
    assert done[0].file and leaked_shared_memory() == before
