"""Graphs: calls over inputs that stay in place, captured, so that a launch repeats them.

CUDA captures CUDA graphs, the CPU records CPU graphs (`core.engine.cpu_graph`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from ostro.core.engine.cpu_graph import NotCapturable, record

T = TypeVar("T")


@dataclass(frozen=True)
class CapturePool:
    """Where one device captures: all its graphs on one stream, with one pool for their memory.

    Graphs of a pool overwrite each other's intermediate values, and so never run side by side.
    """

    stream: torch.cuda.Stream
    pool: Any


class Graphs:
    """The graphs of one model, a lane for each of its devices."""

    def __init__(self) -> None:
        self.lanes: dict[torch.device, CapturePool] = {}
        self.refused = ""  # why the last call was not captured

    def lane(self, device: torch.device) -> CapturePool:
        if device not in self.lanes:
            stream = torch.cuda.Stream(device)
            self.lanes[device] = CapturePool(stream, torch.cuda.graph_pool_handle())
        return self.lanes[device]

    def capture(self, call: Callable[[], T], device: torch.device) -> Callable[[], T]:
        """The call as one launch on the device's current stream: warmed up on a side stream, then
        captured. What it gives lies where it lay before, and holds until the next launch.

        What cannot be captured is called itself; `refused` says why.
        """
        self.refused = ""
        if device.type != "cuda":
            try:
                return record(call)
            except NotCapturable as error:
                self.refused = str(error)
                return call
        lane, graph = self.lane(device), torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            lane.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(lane.stream):
                call()
            torch.cuda.current_stream().wait_stream(lane.stream)
            with torch.cuda.graph(graph, pool=lane.pool, stream=lane.stream):
                out = call()

        def launch() -> T:
            with torch.cuda.device(device):
                graph.replay()
            return out

        return launch
