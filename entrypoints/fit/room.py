"""The room for keys and values beside a model's weights, as the engine plans it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ostro.core.cache import CacheKind
from ostro.core.device import parse_size
from ostro.core.engine.build import NARROW, ROWS, cache_kinds
from ostro.core.engine.memory import BLOCK, SHARE, plan_blocks
from ostro.core.errors import InsufficientMemory, Unsupported
from ostro.core.load.describe import ModelOutline, choose_context
from ostro.core.load.model import LoadedModel
from ostro.core.placement.placement import Placement
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Settings


@dataclass(frozen=True, kw_only=True)
class Growth:
    """What a cache in a type takes: bytes of each 1000 tokens, and of a sequence however long it
    is (windows and states).
    """

    name: str
    per_1000: int
    fixed: int


@dataclass(frozen=True)
class Cache:
    """What a model remembers: its kinds of cache, and the context that it was made for, or less
    where less was asked for.
    """

    kinds: Sequence[CacheKind]
    context: int
    rows: int
    block: int

    def nbytes(self, context: int, streams: int = 1) -> int:
        """Of sequences of a length."""
        return sum(kind.bytes(streams * kind.blocks_of(context, self.rows)) for kind in self.kinds)

    def streams(self, room: int, context: int, most: int) -> int:
        """Sequences of a length that an engine for `most` of them has at once in so many bytes."""
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
        still = [kind for kind in self.kinds if not grows[kind]]
        fixed = replace(self, kinds=still).nbytes(self.context)
        return Growth(name=name, per_1000=1000 * per_block // self.block, fixed=fixed)


def cache_of(found: ModelOutline, path: Path, settings: Settings, plugins: PluginManager) -> Cache:
    """What the model of an outline remembers. Raises Unsupported for a type that it cannot."""
    block = BLOCK[found.device.type]
    unread = LoadedModel(
        model=found.model,
        config=found.config,
        raw_config=found.raw_config,
        architecture=found.architecture,
        path=path,
        container=found.container,
        names=found.names,
        space=found.space,
        device=found.device,
        dtype=found.dtype,
        context=choose_context(settings.context, found.config),
        identity="",
        placement=Placement(found.model, found.device),
    )
    kinds = [kind for kind, _ in cache_kinds(unread, settings, plugins, block)]
    return Cache(kinds, unread.context, ROWS[found.device.type], block)


def growths(
    found: ModelOutline, path: Path, settings: Settings, plugins: PluginManager
) -> Iterator[Growth]:
    """What the cache takes in each type that the model can have it in."""
    for name in ("auto", *NARROW):
        with suppress(Unsupported):
            asked = replace(settings, kv_dtype=name)
            yield cache_of(found, path, asked, plugins).growth(name)


def room_of(settings: Settings, device: torch.device, free: int) -> int:
    """Bytes for the cache where so many are free: what --memory says, else the engine's share.

    None are left where there are fewer than that.
    """
    asked = parse_size(settings.memory) if settings.memory else SHARE[device.type]
    room = int(asked * free) if asked <= 1 else int(asked)
    return room if room <= free else 0
