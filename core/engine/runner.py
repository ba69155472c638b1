"""The model runner: turns a plan into a `Step`, runs the model and the sampler on the device.

Steps run in buckets where they can: steps of fixed size over inputs at fixed addresses. A bucket is
a captured graph, or one graph for each long segment of a model whose layers are split. In `replay`
mode inputs are poisoned between steps, and an eager call replaces a graph that cannot be captured.
This exercises the loop of a GPU without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from time import perf_counter

import torch
from torch import Tensor

from ostro.core.adapters.pool import NOTHING, AdapterPool, MixtureLease
from ostro.core.device import DeviceToHostCopy, return_memory, send, to_device
from ostro.core.engine.blocks import BlockManager, EncoderBlocks
from ostro.core.engine.buckets import (
    DECODE_ROWS,
    PROMPT_ROWS,
    Buckets,
    DecodeBucket,
    PromptBucket,
    sizes_up_to,
)
from ostro.core.engine.features import FeatureStore, has_features, step_features
from ostro.core.engine.graphs import Graphs
from ostro.core.engine.late import LateDraws
from ostro.core.engine.layout import (
    cross_metadata,
    encoder_write_metadata,
    flat_positions,
    mixture_rows,
    paged_metadata,
    token_ids,
)
from ostro.core.engine.location import runs_model
from ostro.core.engine.model_outputs import hidden_of, logits_of
from ostro.core.engine.sampler import Sampler
from ostro.core.engine.scheduler import Chunk, StepPlan
from ostro.core.engine.sequence import Sequence as TokenSequence
from ostro.core.engine.standalone import no_room, standalone_sequence
from ostro.core.errors import RequestError
from ostro.core.failure import ordinary_errors
from ostro.core.messages.arrays import Array
from ostro.core.messages.prompt import Item
from ostro.core.nn import TokenModel
from ostro.core.ops.attention import AttentionMetadata
from ostro.core.placement.segments import LayerSegments
from ostro.core.step import ROWS, Medium, Step


@dataclass
class LaunchedStep:
    """A step in flight: its plan, and the copies of its drawn tokens and prompt logprobs.

    `drawing` are the chunks that draw a token, `logits` [W, V] those to draw from until then.
    `hidden` [T, d] are the hidden states of all rows, with `ModelRunner.keeps_hidden`, until a
    proposer has read them. `began` is the time of `perf_counter` at its launch.
    """

    plan: StepPlan
    drawing: list[Chunk] = field(default_factory=list)
    logits: Tensor | None = None
    drawn: DeviceToHostCopy | None = None
    prompt_logprobs: list[tuple[Chunk, DeviceToHostCopy]] = field(default_factory=list)
    hidden: Tensor | None = None
    began: float = field(default_factory=perf_counter)


class ModelRunner:
    """Runs the steps of one model with its cache and its sampler."""

    def __init__(
        self,
        model: TokenModel,
        blocks: BlockManager,
        sampler: Sampler,
        *,
        context: int,
        dtype: torch.dtype = torch.float32,
        captured: int = 0,
        captured_prompts: int = 0,
        replay: bool = False,
        segments: LayerSegments | None = None,
        features: int = 1 << 28,
        adapter_pool: AdapterPool | None = None,
    ) -> None:
        """`captured` is the largest decode step, in rows, that runs in a bucket, `captured_prompts`
        the largest step with prompts; 0 turns either off. `segments` are those of a model whose
        layers are split. For `replay` see the module. Floating media are converted to `dtype`.
        `features` is the size in bytes of the store of encoded media. `adapter_pool` has the
        adapters on the device.
        """
        self.model, self.blocks, self.sampler = model, blocks, sampler
        self.device, self.context, self.dtype = sampler.device, context, dtype
        self.features = FeatureStore(features)
        self.layers = 1 + max((i for group in blocks.all for i in group.layers), default=-1)
        self.segments, self.graphs, self.poisons = segments, Graphs(), replay
        self.adapter_pool = adapter_pool
        self.keeps_hidden = False  # whether launched steps have their hidden states
        self.late = LateDraws()
        self.max_sequences = max(captured, 1)  # of a captured step
        decodes = sizes_up_to(captured if self.can_capture else 0, DECODE_ROWS)
        # Prompt buckets have no inputs for segments and for cross attention to media.
        eager = segments is not None or bool(blocks.cross_groups)
        prompts = sizes_up_to(0 if eager else captured_prompts, PROMPT_ROWS)
        self.decode_buckets = Buckets(DecodeBucket, decodes)
        self.prompt_buckets = Buckets(PromptBucket, prompts)
        # The largest steps come first, so that the others fit into their memory.
        self.buckets = self.prompt_buckets, self.decode_buckets

    @property
    def can_capture(self) -> bool:
        """Whether any part of a step can be captured."""
        return self.segments is None or bool(self.segments.captured)

    @runs_model
    def capture(self, *, lazily: bool = False) -> None:
        """Capture the buckets of steps without adapters; with `lazily` each one at its first step.

        Those with adapters always are: many servers never need them.
        """
        for buckets in self.buckets:
            buckets.capture(self, lazily=lazily)

    def close(self) -> None:
        """Drop the buckets: they refer to this runner, and would keep its memory."""
        for buckets in self.buckets:
            buckets.close()

    @ordinary_errors()
    @runs_model
    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> LaunchedStep:
        """Launch a step up to its logits, without waiting for the device.

        Raises the errors that end the whole step. An error of one medium or logits processor ends
        only the sequences that use it: they leave the step and are added to `plan.failed`.
        """
        launched = LaunchedStep(plan)
        try:
            for sequence in plan.started:
                self.late.drop(sequence)  # it was preempted
                self.sampler.add(sequence)
            # Encoding may drop sequences from the plan: it must precede every use of the chunks.
            self.encode_planned(plan)
            # Scalings run the base model over the same rows and write the mixture table.
            self.compute_scalings(plan.chunks)
            launched.drawing = [chunk for chunk in plan.chunks if chunk.draws]
            self.sampler.processors.begin([chunk.sequence for chunk in launched.drawing])
            if plan.chunks:
                launched.logits = self.run(launched)
        finally:
            self.collect_failed(plan)
            # After the step only: its rows must find the features that they need.
            self.features.evict()
        return launched

    @ordinary_errors()
    @runs_model
    @torch.inference_mode()
    def sample(self, launched: LaunchedStep) -> None:
        """Launch the draws of a step; sequences that finished since `forward` draw nothing.

        A sequence whose mask takes longer draws in a later step, from the logits of this one.
        Errors are those of `forward`.
        """
        drawing, logits = self.late.take(launched.drawing, launched.logits)
        launched.logits = None
        unfinished = [i for i, chunk in enumerate(drawing) if chunk.sequence.finish is None]
        late = self.sampler.processors.fill([drawing[i].sequence for i in unfinished])
        if late and logits is not None:
            self.late.keep(drawing, logits, late)
        kept = [i for i in unfinished if drawing[i].sequence not in late]
        if logits is not None and len(kept) < len(drawing):
            logits = logits[self.int64(kept)]
        launched.drawing = [drawing[i] for i in kept]
        try:
            if launched.drawing and logits is not None:
                launched.drawn = self.sampler(logits, [c.sequence for c in launched.drawing])
        finally:
            self.collect_failed(launched.plan)

    def collect_failed(self, plan: StepPlan) -> None:
        """Move the sequences that a logits processor failed to the plan."""
        processors = self.sampler.processors
        plan.failed += processors.failed
        processors.failed = []

    def free_memory(self) -> None:
        """Free cached features, what failed steps left, and the reserve of torch's allocator."""
        self.features.clear()
        return_memory()

    def encode_planned(self, plan: StepPlan) -> None:
        """Encode the media of a step; drop the sequences whose media cannot be encoded."""
        failed: dict[bytes, Exception] = {}
        rows = plan.mixture_rows
        # One batch per row of the mixture table, which applies to all rows of an encoder step.
        for row in sorted({0, *rows.values()}):
            items = [item for key, item in plan.encodes.items() if rows.get(key, 0) == row]
            cross = [each for each in plan.encoder_blocks if rows.get(each.item.key, 0) == row]
            step = self.mixture_step(row)
            try:
                self.encode(items, cross, step)
            except Exception:
                # The error does not tell which medium of the batch caused it: try each by itself.
                for item in items:
                    failed |= self.encode_one(item, [item], [], step)
                for blocks in cross:
                    failed |= self.encode_one(blocks.item, [], [blocks], step)
        planned = [chunk.sequence for chunk in plan.chunks]
        for key, error in failed.items():
            users = [s for s in planned if any(item.key == key for item in s.request.items)]
            plan.failed.append((users, error))
            for sequence in users:
                plan.drop(sequence)

    def encode_one(
        self, item: Item, items: Sequence[Item], cross: Sequence[EncoderBlocks], step: Step
    ) -> dict[bytes, Exception]:
        """Encode a medium; return its error by its key, or an empty dict on success."""
        try:
            self.encode(items, cross, step)
        except Exception as error:
            error.add_note(f"encoding of {item.kind}")
            return {item.key: error}
        return {}

    def mixture_step(self, row: int) -> Step:
        """A step that applies one row of the mixture table to all its rows."""
        if not row:
            return ROWS
        return replace(ROWS, mixture=to_device([row], torch.int32, self.device))

    def encode(
        self, items: Iterable[Item], cross: Sequence[EncoderBlocks], step: Step = ROWS
    ) -> None:
        """Encode media: inline `items` into the feature store, those of `cross` into their blocks.

        Both go through the encoder in one batch.
        """
        items = list(items)
        media = [self.medium(item) for item in (*items, *(blocks.item for blocks in cross))]
        if not media:
            return
        encoded = self.model.encode(media, step)
        for item, features in zip(items, encoded, strict=False):
            self.features.put(item.key, features)
        if not cross:
            return
        states = [features[0] for features in encoded[len(items) :]]
        caches: list[object] = [None] * self.layers
        for index, group in enumerate(self.blocks.cross_groups):
            batch = encoder_write_metadata(index, cross, self.blocks.block, group.kind.device)
            for i, layer in enumerate(group.layers):
                caches[layer] = group.kind.view(i, batch)
        self.model.write_states(torch.cat(states), replace(step, caches=caches))

    def medium(self, item: Item) -> Medium:
        """An item's arrays on the device."""
        arrays = {}
        for name, array in item.arrays.items():
            # A copy: the array is read-only memory of a message, which torch warns about.
            values = torch.from_numpy(array.numpy().copy())
            dtype = self.dtype if values.is_floating_point() else values.dtype
            arrays[name] = send(values, dtype, self.device)
        return Medium(item.kind, arrays)

    @runs_model
    @torch.inference_mode()
    def logits(
        self,
        tokens: Sequence[int],
        rows: int = 512,
        *,
        items: Sequence[Item] = (),
        positions: Array | None = None,
        lease: MixtureLease = NOTHING,
    ) -> Tensor:
        """Logits [T, V] float32 of every position of a prompt, on the host.

        The prompt runs in steps of about `rows` rows; `items` and `positions` as in `TokenRequest`,
        `lease` the adapters. The call allocates blocks and releases them at its end. Raises
        RequestError if they do not suffice.
        """
        sequence = standalone_sequence(tokens, items, positions)
        sequence.lease = lease
        sequence.tables = self.blocks.new_tables(1 if lease.scaling is None else 2)
        out, start = [], 0
        try:
            self.encode_all(sequence)
            while start < len(tokens):
                stop = sequence.snap_to_atom(start, min(start + rows, len(tokens)))
                count = stop - start
                if not self.blocks.grow(sequence.tables, start + count):
                    raise RequestError(
                        f"no room in the cache for {len(tokens)} tokens", param="tokens"
                    )
                chunk = Chunk(sequence, start, count, draws=False)
                self.compute_scalings([chunk])
                step, _ = self.build_step([chunk])
                step.logits_indices = None  # the logits of all rows
                hidden = hidden_of(self.model, step)
                logits = logits_of(self.model, hidden, step, self.sampler.vocab)
                out.append(logits.float().cpu())
                start = stop
        finally:
            self.blocks.release(sequence.tables)
            for encoder_blocks in sequence.encoder_blocks:
                self.blocks.release_encoder(encoder_blocks)
            self.features.evict()
        return torch.cat(out)

    def encode_all(self, sequence: TokenSequence) -> None:
        """Encode all media of a sequence that the scheduler does not know.

        Raises Overloaded if the cross groups have no room now, RequestError if they never have.
        """
        step = self.mixture_step(sequence.lease.row_index(0))
        for item in sequence.request.items:
            if item.since is None:
                if item.key not in self.features:
                    self.encode([item], [], step)
                continue
            encoder_blocks = self.blocks.acquire(item, sequence.lease.pairs)
            if encoder_blocks is None:
                for acquired in sequence.encoder_blocks:
                    self.blocks.release_encoder(acquired)
                sequence.encoder_blocks = []
                raise no_room(self.blocks, f"this {item.kind}", "messages")
            # Appended before they are written: the caller releases them even if encoding raises.
            sequence.encoder_blocks.append(encoder_blocks)
            if not encoder_blocks.written:
                self.encode([], [encoder_blocks], step)

    @runs_model
    @torch.inference_mode()
    def hidden(
        self,
        inputs: Sequence[Sequence[int]],
        kinds: Sequence[Sequence[int]] | None = None,
        leases: Sequence[MixtureLease] | None = None,
    ) -> tuple[Tensor, Step]:
        """The last hidden states [T, d] of whole inputs, concatenated, and their step.

        `kinds` are the token types of each input, for encoders with segment embeddings; `leases`
        are the adapters of each input. If the model has a cache, the call allocates blocks and
        releases them at its end. Raises Overloaded if too few are available now, RequestError if
        there are too few at all.
        """
        sequences = [standalone_sequence(tokens) for tokens in inputs]
        chunks = [Chunk(each, 0, each.prompt, draws=False) for each in sequences]
        for sequence, lease in zip(sequences, leases or (), strict=False):
            sequence.lease = lease
        try:
            for chunk in chunks:
                passes = 1 if chunk.sequence.lease.scaling is None else 2
                chunk.sequence.tables = self.blocks.new_tables(passes)
                if not self.blocks.grow(chunk.sequence.tables, chunk.count):
                    for sequence in sequences:  # its own blocks do not count as those in use
                        self.blocks.release(sequence.tables)
                    raise no_room(self.blocks, "this batch", "input")
            self.compute_scalings(chunks)
            step, _ = self.build_step(chunks)
            step.logits_indices = None
            if kinds is not None:
                # Token types are one more axis of positions: such encoders look both up.
                types = self.int64([kind for token_types in kinds for kind in token_types])
                step.positions = torch.cat((step.positions, types[None]))
            return hidden_of(self.model, step), step
        finally:
            for chunk in chunks:
                self.blocks.release(chunk.sequence.tables)

    def states(self, tokens: Sequence[int], lease: MixtureLease | None = None) -> Tensor:
        """The last hidden states [T, d] float32 of a text, with the adapters of `lease`."""
        return self.hidden([tokens], leases=[lease or NOTHING])[0].float()

    def decode_bucket(self, plan: StepPlan, step: Step) -> DecodeBucket | None:
        """The smallest bucket for the decode step of a plan; None if it does not run in one.

        Buckets have no inputs for media features, and one row of logits per sequence.
        """
        if not plan.decodes or any(wants_prompt(c) or has_features(c) for c in plan.chunks):
            return None
        return self.decode_buckets.find(self, len(step.tokens), mixed=step.mixture is not None)

    def prompt_bucket(
        self, step: Step, batches: Sequence[AttentionMetadata]
    ) -> PromptBucket | None:
        """The smallest bucket that holds a step with these metadata; None if it runs eagerly."""
        # A sequence with an image has several entries in the metadata, and `full` ones.
        fits = all(batch.full is None for batch in batches) and step.features is None
        sequences = max((len(batch.lengths) for batch in batches), default=0)
        if not fits or not 0 < sequences <= self.max_sequences:
            return None
        return self.prompt_buckets.find(self, len(step.tokens), mixed=step.mixture is not None)

    def compute_scalings(self, chunks: Sequence[Chunk]) -> None:
        """Write the scalings of X-LoRA rows to the mixture table, all on the device.

        The base model computes these rows first; its hidden states are the classifier's input.
        """
        xlora = [chunk for chunk in chunks if chunk.sequence.lease.scaling is not None]
        if not xlora or self.adapter_pool is None:
            return
        table, scaled = self.adapter_pool.mixtures, [chunk.with_scalings for chunk in xlora]
        base_chunks = [chunk for chunk in scaled if chunk.count]
        hidden = None
        if base_chunks:
            hidden = hidden_of(self.model, self.build_step(base_chunks, pass_index=1)[0])
        # One table row per token, reused by every step: the device runs steps in their order, so
        # the step before has read these rows when they are written.
        row, at = table.scaling_rows.start, 0
        for chunk, base in zip(xlora, scaled, strict=True):
            lease, count = chunk.sequence.lease, base.count
            assert lease.scaling is not None, f"{chunk.sequence.request.id = } is mixed"
            rows = range(row, row + count)
            if hidden is not None and count:
                lease.scaling.write(table, rows, hidden[at : at + count])
            last = lease.rows[0][1].index
            # The row of the lease itself outlives the step: it keeps the last scalings.
            if count and chunk.start + count == chunk.sequence.scaling_end:
                lease.scaling.copy_row(table, rows[-1], last)
            lease.scaling_rows = [*rows, *[last] * (chunk.count - count)]
            row, at = row + count, at + count

    def run(self, launched: LaunchedStep) -> Tensor:
        """The logits [W, V] of the rows that draw; prompt logprobs are appended to `launched`.

        The step runs in a bucket if one holds it.
        """
        chunks = launched.plan.chunks
        step, batches = self.inputs(chunks), self.attention_metadata(chunks)
        if (decodes := self.decode_bucket(launched.plan, step)) is not None:
            hidden, logits = decodes.run(step, batches)
            launched.hidden = hidden if self.keeps_hidden else None
            return logits
        spans = self.complete(step, chunks, batches)
        bucket = self.prompt_bucket(step, batches)
        hidden = bucket.run(step, batches)[0] if bucket else hidden_of(self.model, step)
        launched.hidden = hidden if self.keeps_hidden else None
        # No row draws: skip the head, often the largest matmul of the model.
        if step.logits_indices is not None and not len(step.logits_indices):
            return hidden[:0]
        logits = logits_of(self.model, hidden, step, self.sampler.vocab)
        for chunk, span in zip(chunks, spans, strict=True):
            if wants_prompt(chunk):
                launched.prompt_logprobs.append((chunk, send_logprobs(chunk, logits[span])))
        drawing = [span.stop - 1 for c, span in zip(chunks, spans, strict=True) if c.draws]
        return logits if len(drawing) == len(logits) else logits[self.int64(drawing)]

    def build_step(self, chunks: Sequence[Chunk], pass_index: int = 0) -> tuple[Step, list[slice]]:
        """The step of these chunks, and the slice of each chunk in the logits indices.

        `pass_index` 1 is the pass of X-LoRA sequences by the base model alone.
        """
        step = self.inputs(chunks, pass_index)
        return step, self.complete(step, chunks, self.attention_metadata(chunks, pass_index))

    def inputs(self, chunks: Sequence[Chunk], pass_index: int = 0) -> Step:
        """The tokens, positions and mixture of a step of these chunks; see `build_step`."""
        axes, mixtures = self.model.axes, [] if pass_index else mixture_rows(chunks)
        known, pending = token_ids(chunks)
        tokens = self.int64(known)
        if pending:
            at, rows = (self.int64(column) for column in zip(*pending, strict=True))
            tokens[at] = self.sampler.last[rows]
        return Step(
            tokens=tokens,
            positions=self.int64(flat_positions(chunks, axes)).view(axes, -1),
            mixture=to_device(mixtures, torch.int32, self.device) if any(mixtures) else None,
        )

    def complete(
        self, step: Step, chunks: Sequence[Chunk], batches: Sequence[AttentionMetadata]
    ) -> list[slice]:
        """Add to the inputs of a step what its eager forward needs; see `build_step`."""
        indices, spans, row = list[int](), list[slice](), 0
        for chunk in chunks:
            first = row + (0 if wants_prompt(chunk) else chunk.count - 1)
            row += chunk.count
            rows = range(first, row) if chunk.draws or wants_prompt(chunk) else ()
            spans.append(slice(len(indices), len(indices) + len(rows)))
            indices += rows
        step.caches = self.cache_views(batches)
        step.features = step_features(chunks, self.features)
        step.logits_indices = None if len(indices) == row else self.int64(indices)
        step.bounds = [0, *accumulate(chunk.count for chunk in chunks)]
        return spans

    def attention_metadata(
        self, chunks: Sequence[Chunk], pass_index: int = 0
    ) -> list[AttentionMetadata]:
        """The attention metadata of these chunks for each group, then for each cross group."""
        size, groups, cross_groups = self.blocks.block, self.blocks.groups, self.blocks.cross_groups
        first = pass_index * len(groups)  # a sequence has the tables of its passes in a row
        return [
            *[
                paged_metadata(g, i, chunks, size, g.kind.device)
                for i, g in enumerate(groups, first)
            ],
            *[cross_metadata(i, chunks, g.kind.device) for i, g in enumerate(cross_groups)],
        ]

    def cache_views(self, batches: Sequence[AttentionMetadata]) -> list[object]:
        """The view of each layer on its cache, for the batch of the layer's group."""
        views: list[object] = [None] * self.layers
        for group, batch in zip(self.blocks.all, batches, strict=True):
            for i, layer in enumerate(group.layers):
                views[layer] = group.kind.view(i, batch)
        return views

    def int64(self, values: Sequence[int]) -> Tensor:
        return to_device(values, torch.int64, self.device)


def send_logprobs(chunk: Chunk, logits: Tensor) -> DeviceToHostCopy:
    """The copy of the logprobs of the m prompt tokens after the rows of a chunk; logits [n, V].

    They are the logprobs [m] of these tokens, and the ids and values [m][k] of the best
    alternatives.
    """
    sequence, stop = chunk.sequence, min(chunk.start + chunk.count + 1, chunk.sequence.prompt)
    tokens = to_device(sequence.tokens[chunk.start + 1 : stop], torch.int64, logits.device)
    logprobs = logits[: len(tokens)].float().log_softmax(-1)
    top = logprobs.topk(sequence.request.sampling.prompt_logprobs or 0, -1)
    own = logprobs.gather(1, tokens[:, None])[:, 0]
    return DeviceToHostCopy.send(own, top.indices, top.values)


def wants_prompt(chunk: Chunk) -> bool:
    """Whether the logits of all rows of a chunk are needed, for prompt logprobs."""
    sequence = chunk.sequence
    return (
        sequence.prompt_logprobs is not None
        and not sequence.reported
        and chunk.start < sequence.prompt
    )
