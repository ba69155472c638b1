"""Features of inline media: encoded once, kept by content while there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from ostro.core.device import to_device
from ostro.core.engine.scheduler import Chunk
from ostro.core.step import Features

Encoded = tuple[Tensor, ...]
"""Features [n, d] of one medium, and its further levels [n, d]."""


class FeatureStore:
    """Features by the key of their medium, the least recently used given up first."""

    def __init__(self, limit: int) -> None:
        """`limit` in bytes; what one step needs may exceed it."""
        self.limit, self.nbytes = limit, 0
        self.held: OrderedDict[bytes, Encoded] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self.held

    def get(self, key: bytes) -> Encoded:
        self.held.move_to_end(key)
        return self.held[key]

    def put(self, key: bytes, encoded: Encoded) -> None:
        self.nbytes += size_of(encoded) - size_of(self.held.pop(key, ()))
        self.held[key] = encoded

    def trim(self) -> None:
        """Give up what exceeds the limit."""
        while self.nbytes > self.limit and self.held:
            self.nbytes -= size_of(self.held.popitem(last=False)[1])


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
    """What media put into the rows of these chunks, or None where they have none."""
    parts, rows, base = list[list[Tensor]](), list[int](), 0
    for chunk in chunks:
        start, stop = chunk.start, chunk.start + chunk.count
        for item in chunk.sequence.request.items:
            done = 0
            for first, count in item.spans:
                low, high = max(first, start), min(first + count, stop)
                if low < high:
                    mine = slice(done + low - first, done + high - first)
                    parts.append([level[mine] for level in store.get(item.key)])
                    rows += range(base + low - start, base + high - start)
                done += count
        base += chunk.count
    if not rows:
        return None
    values, *levels = (torch.cat(level) for level in zip(*parts, strict=True))
    return Features(values, to_device(rows, torch.int64, values.device), levels)
