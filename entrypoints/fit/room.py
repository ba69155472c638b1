"""Memory for the KV cache beside a model's weights, computed as the engine does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ostro.core.cache import CacheKind
from ostro.core.device import parse_size
from ostro.core.engine.startup.caches import QUANTIZED_KV, cache_kinds
from ostro.core.engine.startup.memory import BLOCK, ROWS, SHARE, plan_blocks
from ostro.core.errors import InsufficientMemory, Unsupported
from ostro.core.load.describe import ModelOutline, choose_context
from ostro.core.load.model import LoadedModel
from ostro.core.placement.placement import Placement
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Size of a KV cache by dtype: bytes per 1000 tokens, and fixed bytes per sequence.

    The fixed part is that of sliding windows and recurrent states.
    """

    name: str
    per_1000: int
    fixed: int


@dataclass(frozen=True)
class Cache:
    """A model's cache kinds, and its context: the model's own, or --context if shorter."""

    kinds: Sequence[CacheKind]
    context: int
    rows: int
    block: int

    def nbytes(self, context: int, streams: int = 1) -> int:
        """Return the bytes of `streams` sequences with `context` tokens each."""
        return sum(kind.bytes(streams * kind.blocks_of(context, self.rows)) for kind in self.kinds)

    def streams(self, room: int, context: int, most: int) -> int:
        """Return the number of sequences of a length that fit in `room` bytes, at most `most`."""
        try:
            counts = plan_blocks(self.kinds, room, context, self.rows, most)
        except InsufficientMemory:
            return 0
        each = (kind.blocks_of(context, self.rows) for kind in self.kinds)
        return min([most, *(count // need for count, need in zip(counts, each, strict=True))])

    def growth(self, name: str) -> Growth:
        long = self.context + self.block
        grows = {
            kind: kind.blocks_of(long, self.rows) > kind.blocks_of(self.context, self.rows)
            for kind in self.kinds
        }
        per_block = sum(kind.bytes(1) for kind in self.kinds if grows[kind])
        constant = [kind for kind in self.kinds if not grows[kind]]
        fixed = replace(self, kinds=constant).nbytes(self.context)
        return Growth(name=name, per_1000=1000 * per_block // self.block, fixed=fixed)


def cache_of(
    found: ModelOutline,
    path: Path,
    settings: Settings,
    plugins: PluginManager,
    draft: Sequence[CacheKind] = (),
) -> Cache:
    """Return the caches of an outline's model, and those of its draft model.

    Raises Unsupported for a dtype it cannot have.
    """
    block = BLOCK[found.device.type]
    unread = LoadedModel(
        **vars(found),
        path=path,
        context=choose_context(settings.context, found.config),
        identity="",
        placement=Placement(found.model, found.device),
    )
    kinds = [kind for kind, _ in cache_kinds(unread, settings, plugins, block)]
    return Cache([*kinds, *draft], unread.context, ROWS[found.device.type], block)


def growths(
    found: ModelOutline,
    path: Path,
    settings: Settings,
    plugins: PluginManager,
    draft: Sequence[CacheKind],
) -> Iterator[Growth]:
    """Yield the size of the KV cache in each dtype that the model supports."""
    for name in ("auto", *QUANTIZED_KV):
        with suppress(Unsupported):
            changed = replace(settings, kv_dtype=name)
            yield cache_of(found, path, changed, plugins, draft).growth(name)


def room_of(settings: Settings, device: torch.device, free: int) -> int:
    """Return the bytes for the KV cache: --memory or the engine's share of `free` bytes.

    Returns 0 if --memory exceeds the free memory.
    """
    memory = parse_size(settings.memory) if settings.memory else SHARE[device.type]
    room = int(memory * free) if memory <= 1 else int(memory)
    return room if room <= free else 0
