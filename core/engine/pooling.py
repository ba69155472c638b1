"""Whole inputs to vectors and scores: one step per batch of inputs, of whichever requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ostro.core.adapters.adapter import EMPTY, Mixture
from ostro.core.adapters.pool import NOTHING, MixtureLease
from ostro.core.adapters.registry import Registry
from ostro.core.engine.failure import PLAIN, Failures
from ostro.core.engine.request import Finish, JobOutput, PoolingRequest, Stats
from ostro.core.engine.runner import ModelRunner
from ostro.core.errors import ContextLengthExceeded, OstroError, RequestError
from ostro.core.media import Array

Pool = Callable[[Tensor, Sequence[int]], Tensor]
"""States [T, d] of inputs that begin at `bounds` -> vectors [B, n]."""


@dataclass
class PoolingTask:
    """A request, and what there is of its answer."""

    request: PoolingRequest
    mixture: Mixture = EMPTY
    rows: dict[int, Tensor] = field(default_factory=dict)


class PoolingEngine:
    """Answers requests for vectors, or for the scores of a model that has some."""

    def __init__(
        self,
        runner: ModelRunner,
        pool: Pool,
        *,
        vocab: int,
        context: int,
        max_rows: int,
        registry: Registry | None = None,
        failures: Failures = PLAIN,
    ) -> None:
        """`registry` counts the uses of adapters; the runner's pool brings them to the device.
        `failures` makes the errors that end requests.
        """
        self.runner, self.pool, self.registry = runner, pool, registry
        self.vocab, self.context, self.max_rows = vocab, context, max_rows
        self.failures = failures
        self.queue: deque[tuple[str, int]] = deque()
        self.live: dict[str, PoolingTask] = {}

    @property
    def busy(self) -> bool:
        return bool(self.queue)

    def submit(self, request: PoolingRequest, mixture: Mixture = EMPTY) -> None:
        """Take a request in. Raises RequestError if it can never run."""
        if not request.inputs:
            raise RequestError("there is no input", param="input")
        for i, ids in enumerate(request.inputs):
            if not ids:
                raise RequestError(f"input[{i}] is empty", param="input")
            if len(ids) > self.context:
                raise ContextLengthExceeded(
                    f"input[{i}] has {len(ids)} tokens and the context {self.context}; shorten it",
                    param="input",
                )
            if wrong := [id for id in ids if not 0 <= id < self.vocab]:
                raise RequestError(
                    f"input[{i}]: token id {wrong[0]} is not within 0..{self.vocab - 1}",
                    param="input",
                )
        self.live[request.id] = PoolingTask(request, mixture)
        if self.registry is not None:
            self.registry.lease(mixture)
        self.queue += [(request.id, i) for i in range(len(request.inputs))]

    def abort(self, id: str) -> list[JobOutput]:
        """Drop a request; unknown ones are ignored."""
        return self.drop(id, "abort")

    def fail(self, ids: Iterable[str], error: Exception) -> list[JobOutput]:
        """End requests with an error."""
        told = self.failures.of(error)
        return [output for id in dict.fromkeys(ids) for output in self.drop(id, "error", told)]

    def drop(self, id: str, finish: Finish, error: OstroError | None = None) -> list[JobOutput]:
        """Finish a request from outside; unknown ones are ignored."""
        reading = self.live.pop(id, None)
        if reading is None:
            return []
        if self.registry is not None:
            self.registry.release(reading.mixture)
        self.queue = deque(entry for entry in self.queue if entry[0] != id)
        if error is None:
            return [JobOutput(id=id, finish=finish)]
        return [JobOutput(id=id, finish=finish, error=str(error), param=error.param)]

    def step(self) -> list[JobOutput]:
        """Read the next inputs that fit into one step together. An error ends their requests."""
        try:
            batch, helds = self.next_batch()
        except Exception as error:
            return self.fail([self.queue[0][0]], error)
        if not batch:
            return []
        first = self.live[batch[0][0]].request
        inputs = [self.live[id].request.inputs[i] for id, i in batch]
        kinds = [(self.live[id].request.kinds or {}).get(i) for id, i in batch]
        told = [k if k is not None else [0] * len(x) for k, x in zip(kinds, inputs, strict=True)]
        try:
            untold = None if all(k is None for k in kinds) else told
            answers = self.read(inputs, untold, first.output, helds)
        except Exception as error:
            return self.fail([id for id, _ in batch], error)
        finally:
            self.let_go(helds)
        for (id, i), row in zip(batch, answers, strict=True):
            self.live[id].rows[i] = row
        return [self.finish(id) for id in dict.fromkeys(id for id, _ in batch) if self.whole(id)]

    def next_batch(self) -> tuple[list[tuple[str, int]], list[MixtureLease]]:
        """Inputs in their order, of requests for the same kind of answer, and the adapters of each
        on the device; none while there is no room for those of the first. Raises what keeps those
        of the first from the device.
        """
        batch, helds, rows = list[tuple[str, int]](), list[MixtureLease](), 0
        kind = self.live[self.queue[0][0]].request.output
        while self.queue:
            entry = self.queue[0]
            other = self.live[entry[0]].request.output != kind
            if other or (batch and rows + self.size(entry) > self.max_rows):
                break
            try:
                held = self.hold(self.live[entry[0]].mixture)
            except Exception:
                if batch:
                    break  # it is raised again when this input is the first
                raise
            if held is None:
                break
            rows += self.size(entry)
            batch.append(self.queue.popleft())
            helds.append(held)
        return batch, helds

    def size(self, entry: tuple[str, int]) -> int:
        id, i = entry
        return len(self.live[id].request.inputs[i])

    @torch.inference_mode()
    def read(
        self,
        inputs: Sequence[list[int]],
        kinds: Sequence[list[int]] | None,
        output: str,
        helds: Sequence[MixtureLease] = (),
    ) -> Tensor:
        """Vectors or scores [B, n] float32 of whole inputs, on the host."""
        hidden, step = self.runner.hidden(inputs, kinds, helds)
        if output == "scores":
            scores: Tensor = self.runner.model.scores(hidden, step)
            return scores.float().cpu()
        return self.pool(hidden, step.bounds).float().cpu()

    def hold(self, mixture: Mixture) -> MixtureLease | None:
        """Bring a mixture to the device; None where there is no room now."""
        if not mixture.shares or self.runner.adapter_pool is None:
            return NOTHING
        return self.runner.adapter_pool.hold(mixture)

    def let_go(self, helds: Sequence[MixtureLease]) -> None:
        for held in helds:
            if self.runner.adapter_pool is not None:
                self.runner.adapter_pool.let_go(held)

    def whole(self, id: str) -> bool:
        reading = self.live[id]
        return len(reading.rows) == len(reading.request.inputs)

    def finish(self, id: str) -> JobOutput:
        reading = self.live.pop(id)
        if self.registry is not None:
            self.registry.release(reading.mixture)
        total = len(reading.request.inputs)
        answer = torch.stack([reading.rows[i] for i in range(total)]).numpy()
        return JobOutput(
            id=id,
            done=total,
            total=total,
            arrays={"rows": Array.of(answer)},
            finish="stop",
            generations=reading.mixture.generations,
        )

    def stats(self) -> Stats:
        """What it holds and has to do."""
        blocks = self.runner.blocks
        return Stats(
            waiting=len(self.live),
            blocks_total=sum(group.pool.size for group in blocks.all),
            blocks_used=sum(group.pool.used for group in blocks.all),
            cache_bytes=blocks.used_bytes,
            peak_cache_bytes=blocks.peak_bytes,
        )

    def close(self) -> None:
        """Drop everything."""
        self.queue.clear()
        self.live.clear()
