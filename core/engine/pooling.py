"""The pooling engine: computes vectors and scores of whole inputs, one step per batch.

A batch may mix the inputs of several requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ostro.core.adapters.adapter import EMPTY, Mixture
from ostro.core.adapters.pool import NOTHING, MixtureLease
from ostro.core.adapters.registry import Registry
from ostro.core.device import current_device
from ostro.core.engine.runner import ModelRunner
from ostro.core.engine.standalone import are_available, can_be_available, count_blocks
from ostro.core.errors import ContextLengthExceeded, OstroError, RequestError
from ostro.core.failure import PLAIN, Failures, described, not_finite
from ostro.core.messages.arrays import Array
from ostro.core.messages.outputs import Finish, JobOutput, Stats
from ostro.core.messages.requests import PoolingRequest

Pool = Callable[[Tensor, Sequence[int]], Tensor]
"""Hidden states [T, d] of inputs that start at `bounds` [B + 1] -> vectors [B, n]."""


@dataclass
class PoolingTask:
    """A request with its adapters; `rows` are the computed vectors or scores by input index."""

    request: PoolingRequest
    mixture: Mixture = EMPTY
    rows: dict[int, Tensor] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether all inputs have been computed."""
        return len(self.rows) == len(self.request.inputs)


class PoolingEngine:
    """Serves requests for vectors, or for scores if the model has them."""

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
        """`pool` turns hidden states into vectors. `max_rows` bounds the tokens of a batch.
        `registry` counts the users of adapters; the runner's pool loads them to the device.
        `failures` converts exceptions to errors of requests.
        """
        self.runner, self.pool, self.registry = runner, pool, registry
        self.vocab, self.context, self.max_rows = vocab, context, max_rows
        self.failures = failures
        self.queue: deque[tuple[str, int]] = deque()
        """Request ids and input indices, in the order of priority and arrival."""
        self.live: dict[str, PoolingTask] = {}

    @property
    def busy(self) -> bool:
        """Whether an input waits."""
        return bool(self.queue)

    def submit(self, request: PoolingRequest, mixture: Mixture = EMPTY) -> None:
        """Add a request; `mixture` are its adapters. Raises RequestError if it can never run."""
        if not request.inputs:
            raise RequestError("there is no input", param="input")
        for i, ids in enumerate(request.inputs):
            if not ids:
                raise RequestError(f"input[{i}] is empty", param="input")
            if len(ids) > self.context:
                error = ContextLengthExceeded.of(
                    self.context, len(ids), to_generate=0, param="input"
                )
                error.args = (f"input[{i}]: {error}",)
                raise error
            if invalid := [id for id in ids if not 0 <= id < self.vocab]:
                raise RequestError(
                    f"input[{i}]: token id {invalid[0]} is not within 0..{self.vocab - 1}",
                    param="input",
                )
            if not can_be_available(self.runner.blocks, self.count_blocks(len(ids), mixture)):
                raise RequestError(
                    f"input[{i}] has {len(ids)} tokens and there is no room in the cache for them; "
                    "shorten it, or load with more --memory",
                    param="input",
                )
        self.live[request.id] = PoolingTask(request, mixture)
        if self.registry is not None:
            self.registry.retain(mixture)
        last = self.live[self.queue[-1][0]].request.priority if self.queue else request.priority
        self.queue += [(request.id, i) for i in range(len(request.inputs))]
        if last > request.priority:
            by_priority = sorted(self.queue, key=lambda x: self.live[x[0]].request.priority)
            self.queue = deque(by_priority)

    def abort(self, id: str, index: int | None = None) -> list[JobOutput]:
        """Abort a request, which has one choice; unknown ones are ignored."""
        return self.finish_early(id, "abort")

    def fail(self, ids: Iterable[str], error: Exception) -> list[JobOutput]:
        """End requests with an error."""
        cause = self.failures.of(error)
        # A request with several inputs in the batch ends once.
        ids = dict.fromkeys(ids)
        return [output for id in ids for output in self.finish_early(id, "error", cause)]

    def finish_early(
        self, id: str, finish: Finish, error: OstroError | None = None
    ) -> list[JobOutput]:
        """Finish a request without a result; unknown ones are ignored."""
        task = self.live.pop(id, None)
        if task is None:
            return []
        if self.registry is not None:
            self.registry.release(task.mixture)
        self.queue = deque(entry for entry in self.queue if entry[0] != id)
        self.runner.blocks.awaited = False
        return [JobOutput(id=id, finish=finish, **described(error))]

    def step(self) -> list[JobOutput]:
        """Compute the next batch of inputs. An error ends the requests of the batch."""
        try:
            batch, leases = self.next_batch()
        except Exception as error:
            # Only the first input's adapters raise here; see `next_batch`.
            return self.fail([self.queue[0][0]], error)
        if not batch:
            return []
        first = self.live[batch[0][0]].request
        inputs = [self.live[id].request.inputs[i] for id, i in batch]
        try:
            rows = self.read(inputs, self.token_types(batch, inputs), first.output, leases)
        except Exception as error:
            return self.fail([id for id, _ in batch], error)
        finally:
            self.release(leases)
        outputs = list[JobOutput]()
        for (id, i), row, is_finite in zip(batch, rows, rows.isfinite().all(-1), strict=True):
            if id not in self.live:
                continue  # an earlier input of it failed
            if is_finite:
                self.live[id].rows[i] = row
            else:
                cause = not_finite(self.runner.dtype, f"the output of input[{i}] is")
                outputs += self.fail([id], cause)
        ids = [id for id in dict.fromkeys(id for id, _ in batch) if id in self.live]
        return outputs + [self.finish(id) for id in ids if self.live[id].is_complete]

    def token_types(
        self, batch: Sequence[tuple[str, int]], inputs: Sequence[list[int]]
    ) -> list[list[int]] | None:
        """The token types of each input, 0 by default; None if no request gives any."""
        types = [(self.live[id].request.kinds or {}).get(i) for id, i in batch]
        if all(each is None for each in types):
            return None
        zeros = [[0] * len(tokens) for tokens in inputs]
        return [zero if each is None else each for each, zero in zip(types, zeros, strict=True)]

    def next_batch(self) -> tuple[list[tuple[str, int]], list[MixtureLease]]:
        """Take the next inputs off the queue, in order, with their adapters on the device.

        All of them need the same kind of output. The batch is empty while running sequences have
        the blocks or the adapters that the first input needs. Raises the error of loading adapters.
        """
        batch, leases, rows = list[tuple[str, int]](), list[MixtureLease](), 0
        blocks = self.runner.blocks
        needed = [0] * len(blocks.groups)
        output = self.live[self.queue[0][0]].request.output
        while self.queue:
            entry = self.queue[0]
            differs = self.live[entry[0]].request.output != output
            # The first input always runs, whatever its length.
            if differs or (batch and rows + self.size(entry) > self.max_rows):
                break
            mixture = self.live[entry[0]].mixture
            more = self.count_blocks(self.size(entry), mixture)
            needed = [a + b for a, b in zip(needed, more, strict=True)]
            if not are_available(blocks, needed):
                break
            try:
                lease = self.acquire(mixture)
            except Exception:
                if batch:
                    break  # it is raised again when this input is the first
                raise
            if lease is None:
                break
            rows += self.size(entry)
            batch.append(self.queue.popleft())
            leases.append(lease)
        blocks.awaited = not batch
        return batch, leases

    def count_blocks(self, length: int, mixture: Mixture) -> list[int]:
        """The blocks of each group for an input of `length` tokens."""
        return count_blocks(self.runner.blocks, length, 1 if mixture.mixer is None else 2)

    def size(self, entry: tuple[str, int]) -> int:
        """The number of tokens of an input."""
        id, i = entry
        return len(self.live[id].request.inputs[i])

    @torch.inference_mode()
    def read(
        self,
        inputs: Sequence[list[int]],
        kinds: Sequence[list[int]] | None,
        output: str,
        leases: Sequence[MixtureLease] = (),
    ) -> Tensor:
        """Vectors or scores [B, n] float32 of whole inputs, on the host.

        `kinds` are the token types of each input, `output` is "vectors" or "scores".
        """
        hidden, step = self.runner.hidden(inputs, kinds, leases)
        with current_device(self.runner.device):
            if output == "scores":
                scores: Tensor = self.runner.model.scores(hidden, step)
                return scores.float().cpu()
            return self.pool(hidden, step.bounds).float().cpu()

    def acquire(self, mixture: Mixture) -> MixtureLease | None:
        """Load the adapters of a mixture to the device; None if they do not fit now."""
        if not mixture.shares or self.runner.adapter_pool is None:
            return NOTHING
        return self.runner.adapter_pool.acquire(mixture)

    def release(self, leases: Sequence[MixtureLease]) -> None:
        """Release leases of `acquire`."""
        for lease in leases:
            if self.runner.adapter_pool is not None:
                self.runner.adapter_pool.release(lease)

    def finish(self, id: str) -> JobOutput:
        """Remove a complete request and return its result, in the order of its inputs."""
        task = self.live.pop(id)
        if self.registry is not None:
            self.registry.release(task.mixture)
        total = len(task.request.inputs)
        result = torch.stack([task.rows[i] for i in range(total)]).numpy()
        return JobOutput(
            id=id,
            done=total,
            total=total,
            arrays={"rows": Array.of(result)},
            finish="stop",
            generations=task.mixture.generations,
        )

    def stats(self) -> Stats:
        """The current counters."""
        blocks = self.runner.blocks
        return Stats(
            waiting=len(self.live),
            blocks_total=sum(group.pool.size for group in blocks.all),
            blocks_used=sum(group.pool.used for group in blocks.all),
            cache_bytes=blocks.used_bytes,
            peak_cache_bytes=blocks.peak_bytes,
        )

    def close(self) -> None:
        """Drop all requests."""
        self.queue.clear()
        self.live.clear()
