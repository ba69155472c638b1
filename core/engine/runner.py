"""The runner: from a plan to a `Step`, through the model, to drawn tokens, all on the device.

Decode steps run in buckets: steps of fixed size over inputs that stay in place. A bucket is a
captured graph, or one for each long segment of a model whose layers are split; on CPU it is a tape.
In `replay` mode inputs are poisoned between steps, and where nothing can be captured the eager call
stands in for the graph, so that the loop of a GPU is exercised without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor

from ostro.core.adapters.pool import NOTHING, AdapterPool, MixtureLease
from ostro.core.device import DeviceToHostCopy, send, to_device
from ostro.core.engine.blocks import BlockManager, EncoderBlocks
from ostro.core.engine.decode_graphs import DecodeBucket
from ostro.core.engine.features import FeatureStore, has_features, step_features
from ostro.core.engine.graphs import Graphs
from ostro.core.engine.layout import into_memories, over_memories, over_pages
from ostro.core.engine.request import TokenRequest
from ostro.core.engine.sampler import Sampler
from ostro.core.engine.scheduler import Chunk, StepPlan
from ostro.core.engine.sequence import Sequence as TokenSequence
from ostro.core.errors import RequestError
from ostro.core.media import Array, Item
from ostro.core.nn import TokenModel
from ostro.core.nn.location import names_modules
from ostro.core.ops.attention import AttentionMetadata
from ostro.core.placement.segments import LayerSegments
from ostro.core.step import ROWS, Medium, Step

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass
class LaunchedStep:
    """A step on its way: its plan, what it draws, and the logits of prompt rows that were asked
    for.
    """

    plan: StepPlan
    drawn: DeviceToHostCopy | None = None
    prompt_logits: list[tuple[Chunk, Tensor]] = field(default_factory=list)


class ModelRunner:
    """One model with its cache and its sampler on one device."""

    def __init__(
        self,
        model: TokenModel,
        blocks: BlockManager,
        sampler: Sampler,
        *,
        context: int,
        dtype: torch.dtype = torch.float32,
        captured: int = 0,
        replay: bool = False,
        segments: LayerSegments | None = None,
        features: int = 1 << 28,
        adapter_pool: AdapterPool | None = None,
    ) -> None:
        """`captured` > 0 runs decode steps of up to so many rows in buckets, of a split model those
        of its `segments` that are captured; `replay` as the module says; floating media arrive in
        `dtype`; `features` bytes of encoded media are kept; `adapter_pool` holds the adapters on
        the device.
        """
        self.model, self.blocks, self.sampler = model, blocks, sampler
        self.device, self.context, self.dtype = sampler.device, context, dtype
        self.features = FeatureStore(features)
        self.layers = 1 + max((i for group in blocks.all for i in group.layers), default=-1)
        self.sizes = [n for i, n in enumerate(BUCKETS) if not i or BUCKETS[i - 1] < captured]
        self.segments, self.graphs, self.poisons = segments, Graphs(), replay
        self.adapter_pool = adapter_pool
        self.buckets: dict[int, DecodeBucket] = {}
        self.mixed_buckets: dict[int, DecodeBucket] = {}
        self.seen = 0  # the program of adapters that these were captured with
        if not captured or not self.captures:
            self.sizes = []

    @property
    def captures(self) -> bool:
        """Whether there is anything in a step that is captured."""
        return self.segments is None or bool(self.segments.captured)

    @names_modules
    def capture(self) -> None:
        """Make all buckets of steps without adapters. Those with adapters are made when the first
        such step comes.
        """
        self.buckets, self.mixed_buckets = self.capture_all(mixed=False), {}

    def capture_all(self, mixed: bool) -> dict[int, DecodeBucket]:
        """Buckets of all sizes, the largest first so that the smaller share its memory; those whose
        steps cannot be captured run eagerly, at their true size.
        """
        buckets: dict[int, DecodeBucket] = {}
        for size in reversed(self.sizes):
            bucket = DecodeBucket(self, size, mixed=mixed)
            if self.poisons or not self.graphs.refused:
                buckets[size] = bucket
        return buckets if self.captures else {}

    def family(self, mixed: bool) -> dict[int, DecodeBucket]:
        """The buckets without adapters, or with; these are made anew where an adapter has brought a
        table, a gain or a whole weight to a module that had none.
        """
        if not mixed or self.adapter_pool is None or not self.sizes:
            return self.buckets
        if not self.mixed_buckets or self.seen != self.adapter_pool.changes:
            # Buckets of another program must never run: none are left where capturing fails.
            self.mixed_buckets = {}
            self.mixed_buckets = self.capture_all(mixed=True)
            self.seen = self.adapter_pool.changes
        return self.mixed_buckets

    @names_modules
    @torch.inference_mode()
    def run(self, plan: StepPlan) -> LaunchedStep:
        """Launch a step. Nothing here waits for the device.

        An error ends the whole step, and is raised. Where it is known whose fault it is, that of a
        medium or a logits processor, the step runs without: `plan.failed` has the sequences.
        """
        processors = self.sampler.processors
        launched = LaunchedStep(plan)
        try:
            for sequence in plan.started:
                self.sampler.place(sequence)
            self.encode_planned(plan)
            self.compute_scalings(plan.chunks)
            drawing = [chunk.sequence for chunk in plan.chunks if chunk.draws]
            if plan.chunks:
                bucket = self.bucket(plan)
                logits = bucket.run(plan.chunks) if bucket else self.mixed(plan.chunks, launched)
            if drawing:
                launched.drawn = self.sampler(logits, drawing)
        finally:
            plan.failed += processors.failed
            processors.failed = []
            self.features.trim()
        return launched

    def encode_planned(self, plan: StepPlan) -> None:
        """Encode the media of a step. Sequences leave it whose media cannot be encoded."""
        failed: dict[bytes, Exception] = {}
        for row in sorted({0, *plan.mixed.values()}):
            items = [i for key, i in plan.encodes.items() if plan.mixed.get(key, 0) == row]
            memories = [m for m in plan.memories if plan.mixed.get(m.item.key, 0) == row]
            step = self.under(row)
            try:
                self.encode(items, memories, step)
            except Exception:
                # Encoders take media in batches; which one is at fault shows when each is alone.
                for item in items:
                    failed |= self.encode_alone(item, [item], [], step)
                for memory in memories:
                    failed |= self.encode_alone(memory.item, [], [memory], step)
        planned = [chunk.sequence for chunk in plan.chunks]
        for key, error in failed.items():
            users = [s for s in planned if any(item.key == key for item in s.request.items)]
            plan.failed.append((users, error))
            for sequence in users:
                plan.drop(sequence)

    def encode_alone(
        self, item: Item, items: Sequence[Item], memories: Sequence[EncoderBlocks], step: Step
    ) -> dict[bytes, Exception]:
        """The error by the key of a medium that cannot be encoded; nothing for one that can."""
        try:
            self.encode(items, memories, step)
        except Exception as error:
            error.add_note(f"encoding of {item.kind}")
            return {item.key: error}
        return {}

    def under(self, row: int) -> Step:
        """A step all of whose rows are under one row of the mixture table."""
        if not row:
            return ROWS
        return replace(ROWS, mixture=to_device([row], torch.int32, self.device))

    def encode(
        self, items: Iterable[Item], memories: Sequence[EncoderBlocks], step: Step = ROWS
    ) -> None:
        """Encode media: inline ones into the store, those that layers look at into their cache."""
        items = list(items)
        media = [self.medium(item) for item in (*items, *(m.item for m in memories))]
        if not media:
            return
        encoded = self.model.encode(media, step)
        for item, features in zip(items, encoded, strict=False):
            self.features.put(item.key, features)
        if not memories:
            return
        states = [features[0] for features in encoded[len(items) :]]
        batches = [
            into_memories(i, memories, self.blocks.block, group.kind.device)
            for i, group in enumerate(self.blocks.cross_groups)
        ]
        caches: list[object] = [None] * self.layers
        for group, batch in zip(self.blocks.cross_groups, batches, strict=True):
            for i, layer in enumerate(group.layers):
                caches[layer] = group.kind.view(i, batch)
        self.model.remember(torch.cat(states), replace(step, caches=caches))

    def medium(self, item: Item) -> Medium:
        """An item's arrays on the device."""
        arrays = {}
        for name, array in item.arrays.items():
            values = torch.from_numpy(array.numpy().copy())
            dtype = self.dtype if values.is_floating_point() else values.dtype
            arrays[name] = send(values, dtype, self.device)
        return Medium(item.kind, arrays)

    @names_modules
    @torch.inference_mode()
    def logits(
        self,
        tokens: Sequence[int],
        rows: int = 512,
        *,
        items: Sequence[Item] = (),
        positions: Array | None = None,
        held: MixtureLease = NOTHING,
    ) -> Tensor:
        """Logits [T, V] float32 of every position of a prompt, on the host, in steps of about
        `rows` rows; `items` and `positions` as in `TokenRequest`, under the adapters `held`.

        Takes blocks for the length of the call. Raises RequestError where they do not suffice.
        """
        sequence = alone(tokens, items, positions)
        sequence.held = held
        sequence.tables = self.blocks.tables(1 if held.scaling is None else 2)
        out, start = [], 0
        try:
            self.encode_all(sequence)
            while start < len(tokens):
                stop = sequence.whole(start, min(start + rows, len(tokens)))
                count = stop - start
                if not self.blocks.grow(sequence.tables, start + count):
                    raise RequestError(
                        f"no room in the cache for {len(tokens)} tokens", param="tokens"
                    )
                chunk = Chunk(sequence, start, count, draws=False)
                self.compute_scalings([chunk])
                step, _ = self.step([chunk])
                step.wanted = None
                out.append(self.model.logits(self.model.hidden(step), step).float().cpu())
                start = stop
        finally:
            self.blocks.release(sequence.tables)
            for memory in sequence.memories:
                self.blocks.let_go(memory)
            self.features.trim()
        return torch.cat(out)

    def encode_all(self, sequence: TokenSequence) -> None:
        """Encode whatever a sequence outside the scheduler needs."""
        step = self.under(sequence.held.row(0))
        for item in sequence.request.items:
            if item.since is None:
                if item.key not in self.features:
                    self.encode([item], [], step)
                continue
            memory = self.blocks.hold(item, sequence.held.pairs)
            if memory is None:
                raise RequestError(f"no room in the cache for this {item.kind}", param="messages")
            sequence.memories.append(memory)
            if not memory.written:
                self.encode([], [memory], step)

    @names_modules
    @torch.inference_mode()
    def hidden(
        self,
        inputs: Sequence[Sequence[int]],
        kinds: Sequence[Sequence[int]] | None = None,
        helds: Sequence[MixtureLease] | None = None,
    ) -> tuple[Tensor, Step]:
        """The last hidden states [T, d] of whole inputs, one after the other, in one step.

        `kinds` say of every token which kind of text it belongs to, for encoders that ask; `helds`
        are the adapters of each input. Takes blocks for the length of the call where the model has
        a cache. Raises RequestError where they do not suffice.
        """
        chunks = [Chunk(alone(tokens), 0, len(tokens), draws=False) for tokens in inputs]
        for chunk, held in zip(chunks, helds or (), strict=False):
            chunk.sequence.held = held
        try:
            for chunk in chunks:
                passes = 1 if chunk.sequence.held.scaling is None else 2
                chunk.sequence.tables = self.blocks.tables(passes)
                if not self.blocks.grow(chunk.sequence.tables, chunk.count):
                    raise RequestError("no room in the cache for this batch", param="input")
            self.compute_scalings(chunks)
            step, _ = self.step(chunks)
            step.wanted = None
            if kinds is not None:
                row = self.int64([kind for mine in kinds for kind in mine])
                step.positions = torch.cat((step.positions, row[None]))
            return self.model.hidden(step), step
        finally:
            for chunk in chunks:
                self.blocks.release(chunk.sequence.tables)

    def states(self, tokens: Sequence[int], held: MixtureLease | None = None) -> Tensor:
        """The last hidden states [T, d] float32 of a text, under adapters or none."""
        return self.hidden([tokens], helds=[held or NOTHING])[0].float()

    def bucket(self, plan: StepPlan) -> DecodeBucket | None:
        """The smallest bucket that holds a decode step; None where it must run eagerly: buckets
        take no features of media and give no logits of prompts.
        """
        if not plan.decodes or any(wants_prompt(c) or has_features(c) for c in plan.chunks):
            return None
        rows, mixed = len(plan.chunks), any(self.mixtures(plan.chunks))
        buckets = self.family(mixed).values()
        return next((b for b in reversed(buckets) if b.size >= rows), None)

    def compute_scalings(self, chunks: Sequence[Chunk]) -> None:
        """Have the rows of X-LoRA sequences computed by the base alone, and their hidden states say
        how they will be mixed, all on the device.
        """
        mine = [chunk for chunk in chunks if chunk.sequence.held.scaling is not None]
        if not mine or self.adapter_pool is None:
            return
        table, own = self.adapter_pool.mixtures, [chunk.own for chunk in mine]
        based = [chunk for chunk in own if chunk.count]
        hidden = self.model.hidden(self.step(based, way=1)[0]) if based else None
        row, at = table.drawn.start, 0
        for chunk, base in zip(mine, own, strict=True):
            held, count = chunk.sequence.held, base.count
            assert held.scaling is not None, f"{chunk.sequence.request.id = } is mixed"
            rows = range(row, row + count)
            if hidden is not None and count:
                held.scaling.write(table, rows, hidden[at : at + count])
            last = held.lanes[0][1].row
            if count and chunk.start + count == chunk.sequence.scaling_end:
                held.scaling.hold(table, rows[-1], last)
            held.drawn = [*rows, *[last] * (chunk.count - count)]
            row, at = row + count, at + count

    def mixtures(self, chunks: Sequence[Chunk]) -> list[int]:
        """The row of the mixture table of each row of these chunks."""
        found = list[int]()
        for chunk in chunks:
            found += chunk.sequence.held.rows(chunk.start, chunk.start + chunk.count)
        return found

    def mixed(self, chunks: Sequence[Chunk], launched: LaunchedStep) -> Tensor:
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

    def step(self, chunks: Sequence[Chunk], way: int = 0) -> tuple[Step, list[slice]]:
        """The step of these chunks, and where each chunk's rows lie among the wanted ones; `way` 1
        is that of X-LoRA sequences by the base alone.
        """
        axes = self.model.axes
        tokens, wanted = list[int](), list[int]()
        positions = [list[int]() for _ in range(axes)]
        spans, pending = list[slice](), list[tuple[int, int]]()
        for chunk in chunks:
            sequence, stop = chunk.sequence, chunk.start + chunk.count
            known = sequence.tokens[chunk.start : stop]
            if len(known) < chunk.count:
                pending.append((len(tokens) + len(known), sequence.row))
                known = [*known, 0]
            first = len(tokens) + (0 if wants_prompt(chunk) else chunk.count - 1)
            tokens += known
            for axis, mine in zip(
                positions, sequence.positions(chunk.start, stop, axes), strict=True
            ):
                axis += mine
            rows = range(first, len(tokens)) if chunk.draws or wants_prompt(chunk) else ()
            spans.append(slice(len(wanted), len(wanted) + len(rows)))
            wanted += rows
        mixtures = self.mixtures(chunks) if way == 0 else []
        ids = self.int64(tokens)
        if pending:
            at, owner = (self.int64(column) for column in zip(*pending, strict=True))
            ids[at] = self.sampler.last[owner]
        all_rows = len(wanted) == len(tokens)
        step = Step(
            tokens=ids,
            positions=self.int64([p for axis in positions for p in axis]).view(axes, -1),
            caches=self.views(self.batches(chunks, way)),
            mixture=to_device(mixtures, torch.int32, self.device) if any(mixtures) else None,
            features=step_features(chunks, self.features),
            wanted=None if all_rows else self.int64(wanted),
            bounds=[0, *accumulate(chunk.count for chunk in chunks)],
        )
        return step, spans

    def batches(self, chunks: Sequence[Chunk], way: int = 0) -> list[AttentionMetadata]:
        """How these chunks lie in the blocks of every group, and what they see in cross groups."""
        size, own, cross_groups = self.blocks.block, self.blocks.groups, self.blocks.cross_groups
        first = way * len(own)
        return [
            *[over_pages(g, i, chunks, size, g.kind.device) for i, g in enumerate(own, first)],
            *[over_memories(i, chunks, g.kind.device) for i, g in enumerate(cross_groups)],
        ]

    def views(self, batches: Sequence[AttentionMetadata]) -> list[object]:
        """Per layer, what its cache kind makes of its group's batch."""
        views: list[object] = [None] * self.layers
        for group, batch in zip(self.blocks.all, batches, strict=True):
            for i, layer in enumerate(group.layers):
                views[layer] = group.kind.view(i, batch)
        return views

    def int32(self, values: Sequence[object]) -> Tensor:
        return to_device(values, torch.int32, self.device)

    def int64(self, values: Sequence[int]) -> Tensor:
        return to_device(values, torch.int64, self.device)


def alone(
    tokens: Sequence[int], items: Sequence[Item] = (), positions: Array | None = None
) -> TokenSequence:
    """A sequence that belongs to no request."""
    request = TokenRequest(id="", tokens=list(tokens), items=list(items), positions=positions)
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
