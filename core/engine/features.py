"""Features of inline media: a cache by content, and the features of a step's rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from ostro.core.device import to_device
from ostro.core.engine.scheduler import Chunk
from ostro.core.step import Features

Encoded = tuple[Tensor, ...]
"""Features [n, d] of one medium, and its further levels [n, d] (see `core.step.Features`)."""


class FeatureStore:
    """An LRU cache of features by the key of their medium."""

    def __init__(self, limit: int) -> None:
        """`limit` in bytes; the features of one step may exceed it until `evict`."""
        self.limit, self.nbytes = limit, 0
        self.entries: OrderedDict[bytes, Encoded] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self.entries

    def get(self, key: bytes) -> Encoded:
        """The features of a medium; raises KeyError if it is not cached."""
        self.entries.move_to_end(key)
        return self.entries[key]

    def put(self, key: bytes, encoded: Encoded) -> None:
        """Add features; does not evict, since the step that computed them still reads them."""
        self.nbytes += size_of(encoded) - size_of(self.entries.pop(key, ()))
        self.entries[key] = encoded

    def clear(self) -> None:
        """Remove all features; those that later rows need are computed again."""
        self.entries.clear()
        self.nbytes = 0

    def evict(self) -> None:
        """Evict the least recently used features beyond the limit."""
        while self.nbytes > self.limit and self.entries:
            self.nbytes -= size_of(self.entries.popitem(last=False)[1])


def size_of(encoded: Encoded) -> int:
    return sum(tensor.nbytes for tensor in encoded)


def has_features(chunk: Chunk) -> bool:
    """Whether a row of the chunk belongs to an inline medium."""
    start, stop = chunk.start, chunk.start + chunk.count
    if start >= chunk.sequence.prompt:
        return False
    spans = [span for item in chunk.sequence.request.items for span in item.spans]
    return any(first < stop and first + count > start for first, count in spans)


def step_features(chunks: Sequence[Chunk], store: FeatureStore) -> Features | None:
    """The features of the media in the rows of these chunks, or None if they have none."""
    parts, rows, base = list[list[Tensor]](), list[int](), 0  # base: the chunk's first row
    for chunk in chunks:
        start, stop = chunk.start, chunk.start + chunk.count
        for item in chunk.sequence.request.items:
            done = 0  # rows of the medium in earlier spans
            for first, count in item.spans:
                low, high = max(first, start), min(first + count, stop)
                if low < high:
                    span = slice(done + low - first, done + high - first)
                    parts.append([level[span] for level in store.get(item.key)])
                    rows += range(base + low - start, base + high - start)
                done += count
        base += chunk.count
    if not rows:
        return None
    values, *levels = (torch.cat(level) for level in zip(*parts, strict=True))
    return Features(values, to_device(rows, torch.int64, values.device), levels)
