"""The inputs of a step: tokens, positions, and attention metadata, which say where its rows are in
the cache blocks of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ostro.core.device import to_device
from ostro.core.engine.blocks import BlockTable, CacheGroup, EncoderBlocks
from ostro.core.engine.scheduler import Chunk
from ostro.core.ops.attention import AttentionMetadata, HostMetadata


@dataclass
class RowSegment:
    """`rows` rows, the last at token length - 1 of `blocks`; `full` as in `AttentionMetadata`."""

    rows: int
    length: int
    blocks: list[int]
    full: bool = False


def paged_segments(chunk: Chunk, table: BlockTable, spans: bool = True) -> list[RowSegment]:
    """The rows of a chunk over its own blocks, split at the edges of atoms with `spans`."""
    # -1 marks released blocks. No row reads them, but an index must be valid: block 0 is.
    blocks = [max(block, 0) for block in table.blocks] if table.first else table.blocks
    start, stop = chunk.start, chunk.start + chunk.count
    # Only prompts have atoms.
    if not spans or start >= chunk.sequence.prompt:
        return [RowSegment(chunk.count, stop, blocks)]
    atoms = [
        (max(a, start), min(b, stop)) for a, b in chunk.sequence.atoms if a < stop and b > start
    ]
    cuts = sorted({start, stop, *(edge for atom in atoms for edge in atom)})
    inside = {a for a, _ in atoms}
    return [RowSegment(b - a, b, blocks, a in inside) for a, b in pairwise(cuts)]


def cross_segments(chunk: Chunk, group: int) -> list[RowSegment]:
    """The rows of a chunk, split by the medium that they attend to.

    A row attends to the last medium at or before it. Rows before the first medium attend to none.
    """
    start, stop = chunk.start, chunk.start + chunk.count
    segments, current = list[RowSegment](), None
    at = start
    for following in [*chunk.sequence.encoder_blocks, None]:
        since = stop if following is None else min(max(following.item.since or 0, start), stop)
        if since > at:
            # Block 0 only pads the table of rows without a medium: their length is 0.
            length = 0 if current is None else current.item.length
            blocks = [0] if current is None else current.blocks[group]
            segments.append(RowSegment(since - at, length, blocks, True))
        at, current = max(at, since), following
    return segments


def build_metadata(
    segments: Sequence[RowSegment], slots: Sequence[int], device: torch.device
) -> AttentionMetadata:
    """The metadata of these segments in their order; each row is written to its slot of `slots`."""
    width = max(len(segment.blocks) for segment in segments)
    starts = [0, *accumulate(segment.rows for segment in segments)]
    lengths = [segment.length for segment in segments]
    full = [segment.full for segment in segments] if any(s.full for s in segments) else []
    tables = [segment.blocks for segment in segments]
    padded = [table + [0] * (width - len(table)) for table in tables]
    # CPU kernels plan in Python; reading the tensors back would cost more than these lists.
    host = HostMetadata(starts, lengths, tables, full, {}) if device.type == "cpu" else None

    def int32(values: Sequence[object]) -> Tensor:
        return to_device(values, torch.int32, device)

    return AttentionMetadata(
        table=int32(padded),
        starts=int32(starts),
        lengths=int32(lengths),
        slots=to_device(slots, torch.int64, device),
        max_queries=max(segment.rows for segment in segments),
        max_length=max(lengths),
        full=int32([int(x) for x in full]) if full else None,
        host=host,
    )


def slot_mapping(blocks: Sequence[int], block: int, start: int, stop: int) -> list[int]:
    """Slots of the tokens start..stop in `blocks` of `block` tokens each; negative without one."""
    return [blocks[p // block] * block + p % block for p in range(start, stop)]


def paged_metadata(
    group: CacheGroup, index: int, chunks: Sequence[Chunk], block: int, device: torch.device
) -> AttentionMetadata:
    """The metadata of these chunks in one group, from table `index` of each sequence."""
    if group.kind.aligned:
        return state_metadata(index, chunks, block, device)
    segments, slots = list[RowSegment](), list[int]()
    for chunk in chunks:
        table = chunk.sequence.tables[index]
        segments += paged_segments(chunk, table, group.kind.spec.spans)
        slots += slot_mapping(table.blocks, block, chunk.start, chunk.start + chunk.count)
    return build_metadata(segments, slots, device)


def state_metadata(
    index: int, chunks: Sequence[Chunk], block: int, device: torch.device
) -> AttentionMetadata:
    """As `paged_metadata`, of a group of states: the chunks of a sequence are one segment.

    The state after a proposed token has a block of its own; see `BlockTable.drafts`.
    """
    segments, slots = list[RowSegment](), list[int]()
    previous = None
    for chunk in chunks:
        sequence, stop = chunk.sequence, chunk.start + chunk.count
        table = sequence.tables[index]
        # Of a draft among those of its sequence.
        place = 0 if chunk.draft is None else chunk.start - len(sequence.tokens)
        if sequence is previous:
            segments[-1].rows, segments[-1].length = segments[-1].rows + chunk.count, stop
        else:
            blocks = list(table.blocks)
            if place > 0:  # the state before it is that after the draft before it
                blocks[(chunk.start - 1) // block :] = [table.drafts[place - 1]]
            segments.append(RowSegment(chunk.count, stop, [max(i, 0) for i in blocks]))
        if chunk.draft is None:
            slots += slot_mapping(table.blocks, block, chunk.start, stop)
        else:
            slots.append(table.drafts[place] * block)
        previous = sequence
    return build_metadata(segments, slots, device)


def cross_metadata(index: int, chunks: Sequence[Chunk], device: torch.device) -> AttentionMetadata:
    """The metadata of cross attention from these chunks to the media in cross group `index`."""
    segments = [segment for chunk in chunks for segment in cross_segments(chunk, index)]
    rows = sum(segment.rows for segment in segments)
    # Slot -1: text rows write nothing here, only encoders do.
    return build_metadata(segments, [-1] * rows, device)


def encoder_write_metadata(
    index: int, media: Sequence[EncoderBlocks], block: int, device: torch.device
) -> AttentionMetadata:
    """The metadata that writes the encoder states of these media to cross group `index`."""
    segments, slots = list[RowSegment](), list[int]()
    for medium in media:
        length = medium.item.length
        segments.append(RowSegment(length, length, medium.blocks[index], True))
        slots += slot_mapping(medium.blocks[index], block, 0, length)
    return build_metadata(segments, slots, device)


def token_ids(chunks: Sequence[Chunk]) -> tuple[list[int], list[tuple[int, int]]]:
    """The tokens of these chunks, and (row of the step, row of the sampler) of pending ones.

    At most one token is pending per sequence: the step before drew it, and it is in `Sampler.last`
    on the device. Reading it would wait for that step.
    """
    tokens, pending = list[int](), list[tuple[int, int]]()
    for chunk in chunks:
        known = chunk.known
        if len(known) < chunk.count:
            pending.append((len(tokens) + len(known), chunk.sequence.row))
            known = [*known, 0]
        tokens += known
    return tokens, pending


def flat_positions(chunks: Sequence[Chunk], axes: int) -> list[int]:
    """The positions of the rows of these chunks, one axis after the other."""
    parts = [c.sequence.positions(c.start, c.start + c.count, axes) for c in chunks]
    return [position for axis in range(axes) for part in parts for position in part[axis]]


def mixture_rows(chunks: Sequence[Chunk]) -> list[int]:
    """The row of the mixture table for each row of these chunks."""
    spans = ((c.sequence.lease, c.start, c.start + c.count) for c in chunks)
    return [row for lease, start, stop in spans for row in lease.row_indices(start, stop)]
