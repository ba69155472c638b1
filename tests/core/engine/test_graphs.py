"""Graphs: one stream and one memory pool per device. CUDA is replaced by a stand-in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.core.engine.graphs import Graphs

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)


class Cuda:
    """A stand-in for CUDA that records its calls with the current device and stream."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.now: torch.device = FIRST
        self.active: Any = None
        self.pools = 0
        self.fault: Exception | None = None  # raised by operations within a capture
        self.capturing: int | None = None  # the pool of the capture under way
        for name in ("device", "stream", "graph", "graph_pool_handle", "synchronize"):
            patch.setattr(torch.cuda, name, getattr(self, name))
        patch.setattr(torch.cuda, "Stream", lambda device: Stream(self, f"side of {device}"))
        patch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(self))
        patch.setattr(torch.cuda, "current_stream", lambda: Stream(self, f"main of {self.now}"))
        patch.setattr(torch._C, "_cuda_endAllocateToPool", self.end_pool, raising=False)

    def note(self, *what: Any) -> None:
        self.calls.append((*what, self.now.index, self.active and self.active.name))

    def graph_pool_handle(self) -> int:
        self.pools += 1
        return self.pools

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.now = self.now, device
        try:
            yield
        finally:
            self.now = before

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.active = self.active, stream
        try:
            yield
        finally:
            self.active = before

    @contextmanager
    def graph(
        self, graph: Graph, pool: int, stream: Stream, capture_error_mode: str
    ) -> Iterator[None]:
        """As torch before 2.12: an end that raises keeps the stream and the pool."""
        assert capture_error_mode == "thread_local"
        before, self.active, self.capturing = self.active, stream, pool
        self.note("begin", pool)
        try:
            yield
        finally:
            if self.fault is not None:
                raise RuntimeError("capture invalidated")
        self.note("end")
        self.active, self.capturing = before, None

    def end_pool(self, device: int, pool: int) -> None:
        if self.capturing != pool:
            raise RuntimeError("not recording to this pool")
        self.capturing = None

    def synchronize(self, device: torch.device) -> None:
        self.note("synchronize")

    def operation(self) -> None:
        """An operation that is illegal in a capture, if there is a fault."""
        if self.capturing is not None and self.fault is not None:
            raise self.fault


class Stream:
    def __init__(self, cuda: Cuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def wait_stream(self, other: Stream) -> None:
        self.cuda.note(f"{self.name} waits for {other.name}")


class Graph:
    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda

    def replay(self) -> None:
        self.cuda.note("launch")


def test_a_graph_is_captured_and_launched_on_its_own_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda, graphs = Cuda(monkeypatch), Graphs()
    outs = iter(range(9))

    def call() -> int:
        cuda.note("call")
        return next(outs)

    launch, side = graphs.capture(call, SECOND), "side of cuda:1"
    assert cuda.calls == [
        (f"{side} waits for main of cuda:1", 1, None),
        ("call", 1, side),
        ("call", 1, side),
        (f"main of cuda:1 waits for {side}", 1, None),
        ("begin", 1, 1, side),
        ("call", 1, side),
        ("end", 1, side),
    ]
    cuda.calls.clear()
    assert [launch(), launch()] == [2, 2], "a replay returns the tensors of the capture"
    assert cuda.calls == [("launch", 1, None)] * 2


def test_graphs_of_one_device_share_its_stream_and_its_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda, graphs = Cuda(monkeypatch), Graphs()
    for device in (FIRST, SECOND, FIRST):
        graphs.capture(int, device)
    begun = [call[1:] for call in cuda.calls if call[0] == "begin"]
    assert begun == [(1, 0, "side of cuda:0"), (2, 1, "side of cuda:1"), (1, 0, "side of cuda:0")]


def test_a_capture_that_fails_leaves_the_device_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, graphs = Cuda(monkeypatch), Graphs()
    cuda.fault = RuntimeError("operation not permitted\n\nwhen stream is capturing")
    assert graphs.capture(cuda.operation, SECOND) == cuda.operation
    assert "RuntimeError: operation not permitted when stream is capturing" in graphs.refused
    assert (cuda.active, cuda.now, cuda.capturing) == (None, FIRST, None)
    assert cuda.calls[-1] == ("synchronize", 1, None)
    cuda.fault = None
    assert graphs.capture(cuda.operation, SECOND) != cuda.operation and not graphs.refused


def test_the_error_of_a_device_that_does_not_compute_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda, graphs = Cuda(monkeypatch), Graphs()
    cuda.fault = RuntimeError("capture")

    def broken(device: torch.device) -> None:
        raise RuntimeError("illegal memory access")

    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        graphs.capture(cuda.operation, FIRST)


def test_an_error_of_the_call_itself_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch)
    with pytest.raises(ZeroDivisionError):
        Graphs().capture(lambda: 1 / 0, FIRST)
    assert (cuda.active, cuda.now) == (None, FIRST) and "begin" not in [c[0] for c in cuda.calls]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda x: x.sum().item(), "item"),
        (lambda x: x if x[0] > 0 else -x, "_local_scalar_dense"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x[x > 0], "index"),
        (lambda x: torch.empty(3, device="meta").copy_(x), "copies"),
    ],
)
def test_a_call_that_waits_for_the_device_is_not_captured(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[Tensor], Any], why: str
) -> None:
    cuda, graphs, x = Cuda(monkeypatch), Graphs(), torch.ones(3)

    def waits() -> Any:
        return call(x)

    assert graphs.capture(waits, FIRST) is waits and why in graphs.refused
    assert "begin" not in [c[0] for c in cuda.calls] and cuda.active is None


def test_the_first_run_may_wait_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """It prepares weights: tables of quantized formats are converted on the host."""
    Cuda(monkeypatch)
    graphs, prepared, x = Graphs(), list[float](), torch.ones(3)

    def call() -> Tensor:
        if not prepared:
            prepared.append(x.sum().item())
        return x * 2

    assert graphs.capture(call, FIRST) is not call and not graphs.refused


def test_the_cpu_records_what_can_be_captured() -> None:
    graphs, x = Graphs(), torch.ones(3)
    launch = graphs.capture(lambda: x + 1, torch.device("cpu"))
    x.fill_(5)
    assert launch().tolist() == [6, 6, 6] and not graphs.refused
    reads = x.tolist
    assert graphs.capture(reads, torch.device("cpu")) is reads
    assert "tolist" in graphs.refused


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("tried", [False, True])
def test_a_gpu_computes_after_a_refused_capture(
    monkeypatch: pytest.MonkeyPatch, tried: bool
) -> None:
    """Also if the capture is `tried` and fails, since nothing has refused the call before."""
    if tried:
        monkeypatch.setattr("ostro.core.engine.graphs.prepare", lambda call: call())
    graphs, x, stream = Graphs(), torch.ones(3, device=FIRST), torch.cuda.current_stream(FIRST)

    def reads() -> Tensor:
        return x * x.sum().item()

    assert graphs.capture(reads, FIRST) is reads and graphs.refused
    assert torch.cuda.current_stream(FIRST) == stream
    torch.cuda.empty_cache()
    launch = graphs.capture(lambda: x + 1, FIRST)
    x.fill_(5)
    assert launch().tolist() == [6, 6, 6] and not graphs.refused
    assert reads().tolist() == [75, 75, 75]
