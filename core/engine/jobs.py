"""The job engine: runs image and speech generation in bounded slices of device time.

A job is an iterator of its model; each item is one slice: a denoising step, some frames of sound, a
part of an image. Slices of several jobs of one priority alternate with each other and with token
steps; jobs behind them in priority wait. A job can be aborted after any slice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ostro.core.adapters.adapter import EMPTY, Mixture
from ostro.core.adapters.pool import AdapterPool, MixtureLease
from ostro.core.adapters.registry import Registry
from ostro.core.device import HOST, current_device, to_device
from ostro.core.errors import Overloaded, Unsupported
from ostro.core.failure import PLAIN, Failures, described, ordinary_errors
from ostro.core.messages.arrays import Array
from ostro.core.messages.outputs import JobOutput, Stats
from ostro.core.messages.requests import JobRequest
from ostro.core.nn import JobModel
from ostro.core.results import InvalidResult
from ostro.core.step import ROWS, Slice

DTYPES = {
    *(torch.float16, torch.float32, torch.float64, torch.bool, torch.uint8),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
}
"""The dtypes of the arrays of a slice."""


@dataclass(frozen=True, eq=False)
class Job:
    """An unfinished job: its id, its priority (lower is first), and its next slices."""

    id: str
    priority: int
    slices: Iterator[Slice]


class JobEngine:
    """Runs the jobs of one model, one slice at a time: those of the best priority in turn."""

    def __init__(
        self,
        model: JobModel,
        registry: Registry | None = None,
        adapter_pool: AdapterPool | None = None,
        failures: Failures = PLAIN,
        device: torch.device = HOST,
    ) -> None:
        """`registry` counts the users of adapters, `adapter_pool` loads them to the device; a model
        without adapters has neither. `failures` converts exceptions to errors of jobs. `device` is
        the model's.
        """
        self.model, self.registry, self.failures = model, registry, failures
        self.adapter_pool, self.device = adapter_pool, device
        self.jobs = deque[Job]()
        self.leases: dict[str, tuple[Mixture, MixtureLease]] = {}

    @property
    def busy(self) -> bool:
        """Whether a job is unfinished."""
        return bool(self.jobs)

    def submit(self, request: JobRequest, mixture: Mixture = EMPTY) -> None:
        """Add a job; `mixture` are its adapters.

        Raises Unsupported for an X-LoRA adapter, Overloaded if the adapters do not fit on the
        device, OstroError if the model refuses the job.
        """
        step = ROWS
        if mixture.mixer is not None:
            raise Unsupported(
                "jobs do not support X-LoRA adapters, which scale the tokens of a text; use "
                "another adapter",
                param="adapters",
            )
        if mixture.shares and self.registry is not None and self.adapter_pool is not None:
            # Held for the whole job: all its slices must see the same adapters.
            lease = self.adapter_pool.acquire(mixture)
            if lease is None:
                raise Overloaded("there is no room on the device for these adapters; try again")
            self.registry.retain(mixture)
            self.leases[request.id] = mixture, lease
            row = to_device([lease.row_index(0)], torch.int32, self.adapter_pool.target.device)
            step = replace(ROWS, mixture=row)
        try:
            with current_device(self.device):
                slices = self.model.work(request, step)
        except Exception as error:
            self.release(request.id)
            raise self.failures.of(error) from error
        self.jobs.append(Job(request.id, request.priority, slices))

    def release(self, id: str) -> None:
        """Release the adapters of a job that has ended."""
        if id in self.leases and self.registry is not None and self.adapter_pool is not None:
            mixture, lease = self.leases.pop(id)
            self.adapter_pool.release(lease)
            self.registry.release(mixture)

    def abort(self, id: str, index: int | None = None) -> list[JobOutput]:
        """Abort a job, which has one choice; unknown ones are ignored."""
        remaining = deque(job for job in self.jobs if job.id != id)
        found = len(remaining) < len(self.jobs)
        self.jobs = remaining  # drops the iterator, and with it the tensors of the job
        self.release(id)
        return [JobOutput(id=id, finish="abort")] if found else []

    @torch.inference_mode()
    def step(self) -> list[JobOutput]:
        """Run one slice of the next job. An error ends the job."""
        job = min(self.jobs, key=lambda job: job.priority)  # the first of the best priority
        self.jobs.remove(job)
        id, slices = job.id, job.slices
        try:
            with ordinary_errors(), current_device(self.device):
                done = next(slices, None)
            if not isinstance(done, Slice):
                expected = "a Slice, the last with done == total"
                raise InvalidResult(type(self.model), "work", done, expected)
            # Copying the arrays waits for the device, so a failed slice raises here.
            arrays = {name: self.array_of(name, x) for name, x in done.arrays.items()}
        except Exception as error:
            self.release(id)
            cause = self.failures.of(error)
            return [JobOutput(id=id, finish="error", **described(cause))]
        last = done.done >= done.total
        mixture = self.leases[id][0] if id in self.leases else EMPTY
        if last:
            self.release(id)
        else:
            self.jobs.append(job)
        return [
            JobOutput(
                id=id,
                done=done.done,
                total=done.total,
                arrays=arrays,
                finish="stop" if last else None,
                generations=mixture.generations if last else (),
            )
        ]

    def array_of(self, name: str, value: object) -> Array:
        """An array of a slice, on the host. Raises InvalidResult for a value that is none."""
        if not isinstance(value, Tensor) or value.dtype not in DTYPES:
            expected = f"a tensor of a dtype that NumPy has as {name!r}"
            raise InvalidResult(type(self.model), "work", value, expected)
        return Array.of(value.cpu().numpy())

    def stats(self) -> Stats:
        """The current counters."""
        return Stats(running=len(self.jobs))

    def close(self) -> None:
        """Drop all jobs."""
        self.jobs.clear()
