"""Graphs: one stream and one memory pool per device. CUDA is replaced by a stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from ostro.core.engine.graphs import Graphs

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)


class Cuda:
    """A stand-in for CUDA that records its calls with the current device and stream."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.now: torch.device = FIRST
        self.active: Any = None
        self.pools = 0
        for name in ("device", "stream", "graph", "graph_pool_handle"):
            patch.setattr(torch.cuda, name, getattr(self, name))
        patch.setattr(torch.cuda, "Stream", lambda device: Stream(self, f"side of {device}"))
        patch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(self))
        patch.setattr(torch.cuda, "current_stream", lambda: Stream(self, f"main of {self.now}"))

    def note(self, *what: Any) -> None:
        self.calls.append((*what, self.now.index, self.active and self.active.name))

    def graph_pool_handle(self) -> int:
        self.pools += 1
        return self.pools

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.now = self.now, device
        yield
        self.now = before

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.active = self.active, stream
        yield
        self.active = before

    @contextmanager
    def graph(self, graph: Graph, pool: int, stream: Stream) -> Iterator[None]:
        with self.stream(stream):
            self.note("begin", pool)
            yield
            self.note("end")


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
        (f"main of cuda:1 waits for {side}", 1, None),
        ("begin", 1, 1, side),
        ("call", 1, side),
        ("end", 1, side),
    ]
    cuda.calls.clear()
    assert [launch(), launch()] == [1, 1], "a replay returns the tensors of the capture"
    assert cuda.calls == [("launch", 1, None)] * 2


def test_graphs_of_one_device_share_its_stream_and_its_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda, graphs = Cuda(monkeypatch), Graphs()
    for device in (FIRST, SECOND, FIRST):
        graphs.capture(int, device)
    begun = [call[1:] for call in cuda.calls if call[0] == "begin"]
    assert begun == [(1, 0, "side of cuda:0"), (2, 1, "side of cuda:1"), (1, 0, "side of cuda:0")]


def test_the_cpu_records_what_can_be_captured() -> None:
    graphs, x = Graphs(), torch.ones(3)
    launch = graphs.capture(lambda: x + 1, torch.device("cpu"))
    x.fill_(5)
    assert launch().tolist() == [6, 6, 6] and not graphs.refused
    reads = x.tolist
    assert graphs.capture(reads, torch.device("cpu")) is reads
    assert "tolist" in graphs.refused
