"""Graphs: calls over inputs at fixed addresses, captured once and replayed by a launch.

CUDA captures CUDA graphs, the CPU records CPU graphs (`core.native.cpu_graph`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from ostro.core.native.cpu_graph import NotCapturable, record

T = TypeVar("T")


@dataclass(frozen=True)
class CapturePool:
    """The stream and the memory pool that all graphs of one device share.

    Graphs of a pool overwrite each other's intermediate values, so only one may run at a time. A
    pool per graph would multiply the memory by the number of batch sizes.
    """

    stream: torch.cuda.Stream
    pool: Any


class Graphs:
    """Captures the graphs of one model, with a `CapturePool` for each of its devices."""

    def __init__(self) -> None:
        self.pools: dict[torch.device, CapturePool] = {}
        self.refused = ""  # the reason why the last call was not captured

    def capture_pool(self, device: torch.device) -> CapturePool:
        """The pool of a CUDA device; the first call creates it."""
        if device not in self.pools:
            # CUDA does not capture on the default stream.
            stream = torch.cuda.Stream(device)
            self.pools[device] = CapturePool(stream, torch.cuda.graph_pool_handle())
        return self.pools[device]

    def capture(self, call: Callable[[], T], device: torch.device) -> Callable[[], T]:
        """Capture a call; the function that is returned replays it on the current stream.

        The results keep their memory and are valid until the next launch. A call that cannot be
        captured on the CPU is returned as it is, and `refused` is the reason.
        """
        self.refused = ""
        if device.type != "cuda":
            try:
                return record(call)
            except NotCapturable as error:
                self.refused = str(error)
                return call
        pool, graph = self.capture_pool(device), torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            # The inputs were written on the current stream, which the capture does not see.
            pool.stream.wait_stream(torch.cuda.current_stream())
            # Kernels compile and libraries allocate in the first call: both are forbidden in a
            # capture. It also shows an error as an error and not as an invalid graph.
            with torch.cuda.stream(pool.stream):
                call()
            # And back: what follows on the current stream must not overtake this call.
            torch.cuda.current_stream().wait_stream(pool.stream)
            with torch.cuda.graph(graph, pool=pool.pool, stream=pool.stream):
                out = call()

        # `out` refers to memory of the pool; the closure keeps it and the graph alive.
        def launch() -> T:
            with torch.cuda.device(device):
                graph.replay()
            return out

        return launch
