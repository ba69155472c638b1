"""Graphs: calls over inputs at fixed addresses, captured once and replayed by a launch.

CUDA captures CUDA graphs, the CPU records CPU graphs (`core.native.cpu_graph`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from ostro.core.device import current_device
from ostro.core.host_reads import NotCapturable, RefuseHostReads, RefuseWaits
from ostro.core.native.cpu_graph import record
from ostro.core.plugins.isolation import reason

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
        captured is returned as it is, and `refused` is the reason. Raises the error of a device
        that can no longer compute.
        """
        self.refused = ""
        try:
            return self.capture_cuda(call, device) if device.type == "cuda" else record(call)
        except NotCapturable as error:
            self.refused = str(error)
            return call

    def capture_cuda(self, call: Callable[[], T], device: torch.device) -> Callable[[], T]:
        """Capture a call as a CUDA graph. Raises NotCapturable."""
        with torch.cuda.device(device):
            pool, graph = self.capture_pool(device), torch.cuda.CUDAGraph()
            # The inputs were written on the current stream, which the capture does not see.
            pool.stream.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(pool.stream):
                    prepare(call)
            finally:
                # And back: what follows on the current stream must not overtake these calls.
                torch.cuda.current_stream().wait_stream(pool.stream)
            try:
                # The graph's context does not restore the stream if its end raises.
                with (
                    torch.cuda.stream(pool.stream),
                    # Other threads may allocate memory and copy meanwhile.
                    torch.cuda.graph(
                        graph,
                        pool=pool.pool,
                        stream=pool.stream,
                        capture_error_mode="thread_local",
                    ),
                ):
                    out = call()
            except Exception as error:
                # The same call has just run: only the capture can have failed.
                abandon(pool, device)
                # The end of an invalid capture raises as well: the error before it is the cause.
                raise NotCapturable(reason(error.__context__ or error)) from error

        # `out` refers to memory of the pool; the closure keeps it and the graph alive.
        def launch() -> T:
            with torch.cuda.device(device):
                graph.replay()
            return out

        return launch


class DryGraphs(Graphs):
    """Runs each call once, and captures none."""

    def capture(self, call: Callable[[], T], device: torch.device) -> Callable[[], T]:
        """Run a call and return it."""
        with current_device(device):
            call()
        return call


def prepare(call: Callable[[], T]) -> None:
    """Run a call twice before its capture. Raises its errors, NotCapturable among them."""
    # The first run compiles kernels and prepares weights, which a capture forbids.
    call()
    # A capture that fails may leave torch's allocator and generators in a state of capture: what is
    # known to fail is not tried.
    with RefuseHostReads(), RefuseWaits():
        call()


def abandon(pool: CapturePool, device: torch.device) -> None:
    """Make a device usable after a capture that failed. Raises the error of one that is not."""
    # Before version 2.12 torch does not end the use of the pool if the end of a capture fails, and
    # would not free memory any more (pytorch #180395).
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device.index, pool.pool)
    torch.cuda.synchronize(device)
