"""The runner: from a plan to a `Step`, through the model, to drawn tokens, all on the device.

Decode steps run in buckets: steps of fixed size over inputs that stay in place. On CUDA a bucket is
a captured graph. In `replay` mode, on any device, the eager call stands in for the graph and the
inputs are poisoned between steps, so that the same loop is exercised without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from ostro.core.engine.blocks import Blocks, Group, Table
from ostro.core.engine.request import TokenRequest
from ostro.core.engine.sampler import Sampler
from ostro.core.engine.scheduler import Chunk, Plan
from ostro.core.engine.sequence import Sequence as TokenSequence
from ostro.core.engine.transfer import Arriving, to_device
from ostro.core.errors import RequestError
from ostro.core.nn import Model
from ostro.core.ops.attention import HostRagged, Ragged
from ostro.core.step import Step

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
POISON = -7_777_777


@dataclass
class Launched:
    """A step on its way: its plan, what it draws, and the logits of prompt rows that were asked
    for.
    """

    plan: Plan
    drawn: Arriving | None = None
    prompt_logits: list[tuple[Chunk, Tensor]] = field(default_factory=list)


class Runner:
    """One model with its cache and its sampler on one device."""

    def __init__(
        self, model: Model, blocks: Blocks, sampler: Sampler, *, context: int, captured: int = 0
    ) -> None:
        """`captured` > 0 runs decode steps of up to so many rows in buckets."""
        self.model, self.blocks, self.sampler = model, blocks, sampler
        self.device, self.context = sampler.device, context
        self.layers = sum(len(group.layers) for group in blocks.groups)
        self.sizes = [n for i, n in enumerate(BUCKETS) if not i or BUCKETS[i - 1] < captured]
        self.sizes = self.sizes if captured else []
        self.buckets: dict[int, Bucket] = {}

    def capture(self) -> None:
        """Make all buckets, the largest first so that the smaller share its memory."""
        for size in reversed(self.sizes):
            self.buckets[size] = Bucket(self, size)

    @torch.inference_mode()
    def run(self, plan: Plan) -> Launched:
        """Launch a step. Nothing here waits for the device."""
        for sequence in plan.started:
            self.sampler.place(sequence)
        launched = Launched(plan)
        drawing = [chunk.sequence for chunk in plan.chunks if chunk.draws]
        bucket = self.bucket(plan)
        logits = bucket.run(plan.chunks) if bucket else self.mixed(plan.chunks, launched)
        if drawing:
            launched.drawn = self.sampler(logits, drawing)
        return launched

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int], rows: int = 512) -> Tensor:
        """Logits [T, V] float32 of every position of a text, on the host, in steps of `rows` rows.

        Takes blocks for the length of the call. Raises RequestError where they do not suffice.
        """
        sequence = alone(tokens)
        sequence.tables = self.blocks.tables()
        out = []
        try:
            for start in range(0, len(tokens), rows):
                count = min(rows, len(tokens) - start)
                if not self.blocks.grow(sequence.tables, start + count):
                    raise RequestError(
                        f"no room in the cache for {len(tokens)} tokens", param="tokens"
                    )
                step, _ = self.step([Chunk(sequence, start, count, draws=False)])
                step.wanted = None
                out.append(self.model.logits(self.model.hidden(step), step).float().cpu())
        finally:
            self.blocks.release(sequence.tables)
        return torch.cat(out)

    @torch.inference_mode()
    def hidden(
        self, inputs: Sequence[Sequence[int]], kinds: Sequence[Sequence[int]] | None = None
    ) -> tuple[Tensor, Step]:
        """The last hidden states [T, d] of whole inputs, one after the other, in one step.

        `kinds` say of every token which kind of text it belongs to, for encoders that ask. Takes
        blocks for the length of the call where the model has a cache. Raises RequestError where
        they do not suffice.
        """
        chunks = [Chunk(alone(tokens), 0, len(tokens), draws=False) for tokens in inputs]
        try:
            for chunk in chunks:
                chunk.sequence.tables = self.blocks.tables()
                if not self.blocks.grow(chunk.sequence.tables, chunk.count):
                    raise RequestError("no room in the cache for this batch", param="input")
            step, _ = self.step(chunks)
            step.wanted = None
            if kinds is not None:
                row = self.int64([kind for mine in kinds for kind in mine])
                step.positions = torch.cat((step.positions, row[None]))
            return self.model.hidden(step), step
        finally:
            for chunk in chunks:
                self.blocks.release(chunk.sequence.tables)

    def bucket(self, plan: Plan) -> Bucket | None:
        """The smallest bucket that holds a decode step."""
        if not plan.decodes or any(wants_prompt(chunk) for chunk in plan.chunks):
            return None
        rows = len(plan.chunks)
        return next((self.buckets[size] for size in self.sizes if size >= rows), None)

    def mixed(self, chunks: Sequence[Chunk], launched: Launched) -> Tensor:
        """Any step, eagerly; returns the logits [W, V] of the rows that draw."""
        step, spans = self.step(chunks)
        hidden = self.model.hidden(step)
        if step.wanted is not None and not len(step.wanted):
            return hidden[:0]
        logits = self.model.logits(hidden, step)
        drawing = []
        for chunk, span in zip(chunks, spans, strict=True):
            if wants_prompt(chunk):
                launched.prompt_logits.append((chunk, logits[span]))
            if chunk.draws:
                drawing.append(span.stop - 1)
        return logits if len(drawing) == len(logits) else logits[self.int64(drawing)]

    def step(self, chunks: Sequence[Chunk]) -> tuple[Step, list[slice]]:
        """The step of these chunks, and where each chunk's rows lie among the wanted ones."""
        tokens, positions, wanted = list[int](), list[int](), list[int]()
        spans, pending = list[slice](), list[tuple[int, int]]()
        for chunk in chunks:
            sequence, stop = chunk.sequence, chunk.start + chunk.count
            known = sequence.tokens[chunk.start : stop]
            if len(known) < chunk.count:
                pending.append((len(tokens) + len(known), sequence.row))
                known = [*known, 0]
            first = len(tokens) + (0 if wants_prompt(chunk) else chunk.count - 1)
            tokens += known
            positions += range(chunk.start, stop)
            rows = range(first, len(tokens)) if chunk.draws or wants_prompt(chunk) else ()
            spans.append(slice(len(wanted), len(wanted) + len(rows)))
            wanted += rows
        ids = self.int64(tokens)
        if pending:
            at, owner = (self.int64(column) for column in zip(*pending, strict=True))
            ids[at] = self.sampler.last[owner]
        all_rows = len(wanted) == len(tokens)
        step = Step(
            tokens=ids,
            positions=self.int64(positions)[None],
            caches=self.views([self.ragged(group, i, chunks) for i, group in self.groups]),
            wanted=None if all_rows else self.int64(wanted),
            bounds=[0, *accumulate(chunk.count for chunk in chunks)],
        )
        return step, spans

    @property
    def groups(self) -> list[tuple[int, Group]]:
        return list(enumerate(self.blocks.groups))

    def views(self, batches: Sequence[Ragged]) -> list[object]:
        """Per layer, what its cache kind makes of its group's batch."""
        views: list[object] = [None] * self.layers
        for group, batch in zip(self.blocks.groups, batches, strict=True):
            for i, layer in enumerate(group.layers):
                views[layer] = group.kind.view(i, batch)
        return views

    def ragged(self, group: Group, index: int, chunks: Sequence[Chunk]) -> Ragged:
        """How these chunks lie in one group's blocks."""
        block = self.blocks.block
        sparse = group.kind.aligned
        tables = [blocks_of(chunk.sequence.tables[index], sparse) for chunk in chunks]
        width = max(len(table) for table in tables)
        lengths = [chunk.start + chunk.count for chunk in chunks]
        starts = [0, *accumulate(chunk.count for chunk in chunks)]
        slots = [
            table[p // block] * block + p % block
            for chunk, table in zip(chunks, tables, strict=True)
            for p in range(chunk.start, chunk.start + chunk.count)
        ]
        padded = [table + [0] * (width - len(table)) for table in tables]
        host = HostRagged(starts, lengths, tables, {}) if self.device.type == "cpu" else None
        return Ragged(
            table=self.int32(padded),
            starts=self.int32(starts),
            lengths=self.int32(lengths),
            slots=self.int64(slots),
            max_queries=max(chunk.count for chunk in chunks),
            max_length=max(lengths),
            host=host,
        )

    def int32(self, values: Sequence[object]) -> Tensor:
        return to_device(values, torch.int32, self.device)

    def int64(self, values: Sequence[int]) -> Tensor:
        return to_device(values, torch.int64, self.device)


class Bucket:
    """Decode steps of up to `size` rows over inputs in fixed places; idle rows have length 0."""

    def __init__(self, runner: Runner, size: int) -> None:
        self.runner, self.size = runner, size
        device, width = runner.device, -(-runner.context // runner.blocks.block) + 1
        self.tokens = torch.zeros(size, dtype=torch.int64, device=device)
        self.positions = torch.zeros(1, size, dtype=torch.int64, device=device)
        self.batches = [
            Ragged(
                table=runner.int32([[0] * width] * size),
                starts=runner.int32(list(range(size + 1))),
                lengths=runner.int32([0] * size),
                slots=torch.full((size,), -1, dtype=torch.int64, device=device),
                max_queries=1,
                max_length=runner.context,
            )
            for _ in runner.blocks.groups
        ]
        self.step = Step(self.tokens, self.positions, caches=runner.views(self.batches))
        self.graph: torch.cuda.CUDAGraph | None = None
        self.out = torch.empty(0)
        if device.type == "cuda":
            self.record()

    @torch.inference_mode()
    def record(self) -> None:
        """Warm up on a side stream, then capture."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.forward()
        torch.cuda.current_stream().wait_stream(stream)
        others = [b.graph for b in self.runner.buckets.values() if b.graph is not None]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=others[0].pool() if others else None):
            self.out = self.forward()

    def forward(self) -> Tensor:
        model = self.runner.model
        return model.logits(model.hidden(self.step), self.step)

    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        """Logits [n, V] of n decode rows."""
        self.load(chunks)
        if self.graph is not None:
            self.graph.replay()
            return self.out[: len(chunks)]
        out = self.forward()[: len(chunks)].clone()
        self.poison()
        return out

    def load(self, chunks: Sequence[Chunk]) -> None:
        """Write a step's inputs in place; everything that is not a row of it becomes idle."""
        n = len(chunks)
        known = [
            c.sequence.tokens[c.start] if c.start < len(c.sequence.tokens) else -1 for c in chunks
        ]
        rows = self.runner.int64([c.sequence.row for c in chunks])
        host = self.runner.int64(known)
        self.tokens.zero_()
        self.tokens[:n] = torch.where(host >= 0, host, self.runner.sampler.last[rows])
        self.positions.zero_()
        self.positions[0, :n] = self.runner.int64([c.start for c in chunks])
        for (index, group), mine in zip(self.runner.groups, self.batches, strict=True):
            batch = self.runner.ragged(group, index, chunks)
            mine.table.zero_()
            mine.table[:n, : batch.table.shape[1]] = batch.table
            torch.arange(self.size + 1, out=mine.starts)
            mine.lengths.zero_()
            mine.lengths[:n] = batch.lengths
            mine.slots.fill_(-1)
            mine.slots[:n] = batch.slots
            if batch.host is not None:
                idle = self.size - n
                mine.host = HostRagged(
                    list(range(self.size + 1)),
                    batch.host.lengths + [0] * idle,
                    batch.host.blocks + [[] for _ in range(idle)],
                    {},
                )

    def poison(self) -> None:
        """Spoil every input, so that a step that reads a stale one cannot pass for right."""
        self.tokens.fill_(POISON)
        self.positions.fill_(POISON)
        for batch in self.batches:
            for tensor in (batch.table, batch.starts, batch.lengths, batch.slots):
                tensor.fill_(POISON)
            batch.host = None


def alone(tokens: Sequence[int]) -> TokenSequence:
    """A sequence that belongs to no request."""
    request = TokenRequest(id="", tokens=list(tokens))
    return TokenSequence(
        request, 0, arrival=0, seed=0, root=b"", limit=0, tokens=list(tokens), prompt=len(tokens)
    )


def wants_prompt(chunk: Chunk) -> bool:
    """Whether all of a chunk's rows are asked for, not its last alone."""
    sequence = chunk.sequence
    return (
        sequence.prompt_logprobs is not None
        and not sequence.reported
        and chunk.start < sequence.prompt
    )


def blocks_of(table: Table, sparse: bool) -> list[int]:
    """A table's block ids; those it does not keep are never read and become 0."""
    return [max(block, 0) for block in table.blocks] if table.first or sparse else table.blocks
