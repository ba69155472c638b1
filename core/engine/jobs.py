"""Jobs: work that is no stream of tokens, done in bounded slices of the device's time.

A model that draws or speaks answers a request with an iterator; each of its items is one slice: a
denoising step, some frames of sound, a part of a picture. Slices of several jobs take turns, with
each other and with token steps, and a job can be dropped after any of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from ostro.core.adapters.adapter import EMPTY, Mixture
from ostro.core.adapters.pool import AdapterPool, MixtureLease
from ostro.core.adapters.registry import Registry
from ostro.core.engine.failure import PLAIN, Failures
from ostro.core.engine.request import JobOutput, JobRequest
from ostro.core.errors import OstroError, Overloaded
from ostro.core.media import Array
from ostro.core.step import ROWS, Step


@dataclass(frozen=True, kw_only=True)
class Slice:
    """What one slice has done: `done` of `total`, and arrays to hand on: a preview, or in the last
    slice the result.
    """

    done: int
    total: int
    arrays: Mapping[str, Tensor] = field(default_factory=dict)


class Worker(Protocol):
    """A model that does jobs."""

    def work(self, request: JobRequest, step: Step) -> Iterator[Slice]:
        """The slices of a job; the last of them carries its result. `step` is for all its rows.

        Raises RequestError, before the first slice, for a request that cannot be done.
        """


class JobEngine:
    """The jobs of one model, in turn."""

    def __init__(
        self,
        worker: Worker,
        registry: Registry | None = None,
        adapter_pool: AdapterPool | None = None,
        failures: Failures = PLAIN,
    ) -> None:
        """`registry` counts the uses of adapters, `adapter_pool` brings them to the device; a model
        without adapters has neither. `failures` makes the errors that end jobs.
        """
        self.worker, self.registry, self.failures = worker, registry, failures
        self.adapter_pool = adapter_pool
        self.turns: deque[tuple[str, Iterator[Slice]]] = deque()
        self.held: dict[str, tuple[Mixture, MixtureLease]] = {}

    @property
    def busy(self) -> bool:
        return bool(self.turns)

    def submit(self, request: JobRequest, mixture: Mixture = EMPTY) -> None:
        """Take a job in. Raises Overloaded where there is no room for its adapters, and OstroError
        for a job that the model does not begin.
        """
        step = ROWS
        if mixture.shares and self.registry is not None and self.adapter_pool is not None:
            held = self.adapter_pool.hold(mixture)
            if held is None:
                raise Overloaded("there is no room on the device for these adapters; try again")
            self.registry.lease(mixture)
            self.held[request.id] = mixture, held
            row = torch.tensor([held.row(0)], dtype=torch.int32)
            step = replace(ROWS, mixture=row.to(self.adapter_pool.target.device))
        try:
            slices = self.worker.work(request, step)
        except Exception as error:
            self.let_go(request.id)
            raise self.failures.of(error) from error
        self.turns.append((request.id, slices))

    def let_go(self, id: str) -> None:
        """A job has ended: its adapters may leave the device."""
        if id in self.held and self.registry is not None and self.adapter_pool is not None:
            mixture, held = self.held.pop(id)
            self.adapter_pool.let_go(held)
            self.registry.release(mixture)

    def abort(self, id: str) -> list[JobOutput]:
        """Drop a job; unknown ones are ignored."""
        kept = deque(turn for turn in self.turns if turn[0] != id)
        dropped = len(kept) < len(self.turns)
        self.turns = kept
        self.let_go(id)
        return [JobOutput(id=id, finish="abort")] if dropped else []

    @torch.inference_mode()
    def step(self) -> list[JobOutput]:
        """One slice of the job whose turn it is. An error ends the job."""
        id, slices = self.turns.popleft()
        try:
            done = next(slices, None)
            if done is None:
                raise OstroError("the job ended without a result")
            arrays = {name: Array.of(x.cpu().numpy()) for name, x in done.arrays.items()}
        except Exception as error:
            self.let_go(id)
            told = self.failures.of(error)
            return [JobOutput(id=id, finish="error", error=str(told), param=told.param)]
        last = done.done >= done.total
        mixture = self.held[id][0] if id in self.held else EMPTY
        if last:
            self.let_go(id)
        else:
            self.turns.append((id, slices))
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

    def close(self) -> None:
        """Drop everything."""
        self.turns.clear()
