"""How the rows of a step lie in the blocks of a group: what attention over pages is told."""

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
    """`rows` rows that end at token length - 1 of `blocks`; `full` as in `AttentionMetadata`."""

    rows: int
    length: int
    blocks: list[int]
    full: bool = False


def own_segments(chunk: Chunk, table: BlockTable, sparse: bool) -> list[RowSegment]:
    """A chunk's rows over its own pages, cut where images begin and end whose rows see each other.

    Block ids that a table does not keep are never read and become 0. `sparse`: of a kind whose
    blocks are states, for which a chunk stays whole.
    """
    blocks = table.blocks
    if table.first or sparse:
        blocks = [max(block, 0) for block in blocks]
    start, stop = chunk.start, chunk.start + chunk.count
    if sparse or start >= chunk.sequence.prompt:
        return [RowSegment(chunk.count, stop, blocks)]
    spans = [
        (max(a, start), min(b, stop)) for a, b in chunk.sequence.atoms if a < stop and b > start
    ]
    cuts = sorted({start, stop, *(edge for span in spans for edge in span)})
    inside = {a for a, _ in spans}
    return [RowSegment(b - a, b, blocks, a in inside) for a, b in pairwise(cuts)]


def memory_segments(chunk: Chunk, group: int) -> list[RowSegment]:
    """A chunk's rows over the medium that each of them sees, none before the first."""
    start, stop = chunk.start, chunk.start + chunk.count
    segments, seen = list[RowSegment](), None
    at = start
    for memory in [*chunk.sequence.memories, None]:
        since = stop if memory is None else min(max(memory.item.since or 0, start), stop)
        if since > at:
            segments.append(memory_segment(since - at, seen, group))
        at, seen = max(at, since), memory
    return segments


def memory_segment(rows: int, memory: EncoderBlocks | None, group: int) -> RowSegment:
    if memory is None:
        return RowSegment(rows, 0, [0], True)
    return RowSegment(rows, memory.item.length, memory.blocks[group], True)


def ragged(
    segments: Sequence[RowSegment], slots: Sequence[int], device: torch.device
) -> AttentionMetadata:
    """The layout of these segments, one after the other; `slots` are where each row is written."""
    width = max(len(segment.blocks) for segment in segments)
    starts = [0, *accumulate(segment.rows for segment in segments)]
    lengths = [segment.length for segment in segments]
    full = [segment.full for segment in segments] if any(s.full for s in segments) else []
    tables = [segment.blocks for segment in segments]
    padded = [table + [0] * (width - len(table)) for table in tables]
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


def places(blocks: Sequence[int], block: int, start: int, stop: int) -> list[int]:
    """Slots of the tokens start..stop of what `blocks` hold."""
    return [blocks[p // block] * block + p % block for p in range(start, stop)]


def over_pages(
    group: CacheGroup, index: int, chunks: Sequence[Chunk], block: int, device: torch.device
) -> AttentionMetadata:
    """How these chunks lie in one group's blocks."""
    segments, slots = list[RowSegment](), list[int]()
    for chunk in chunks:
        mine = own_segments(chunk, chunk.sequence.tables[index], group.kind.aligned)
        segments += mine
        slots += places(mine[0].blocks, block, chunk.start, chunk.start + chunk.count)
    return ragged(segments, slots, device)


def over_memories(index: int, chunks: Sequence[Chunk], device: torch.device) -> AttentionMetadata:
    """What these chunks see of media in one cross group."""
    segments = [segment for chunk in chunks for segment in memory_segments(chunk, index)]
    rows = sum(segment.rows for segment in segments)
    return ragged(segments, [-1] * rows, device)


def into_memories(
    index: int, memories: Sequence[EncoderBlocks], block: int, device: torch.device
) -> AttentionMetadata:
    """Where the states of these media are written in one cross group."""
    segments, slots = list[RowSegment](), list[int]()
    for memory in memories:
        length = memory.item.length
        segments.append(RowSegment(length, length, memory.blocks[index], True))
        slots += places(memory.blocks[index], block, 0, length)
    return ragged(segments, slots, device)
