"""The report of what fits: formats, caches, and contexts by sequences at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ostro.core.device import free_bytes
from ostro.core.engine.build import set_threads
from ostro.core.engine.memory import largest_context
from ostro.core.load.describe import ModelOutline, outline
from ostro.core.load.sizes import Sizes
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Settings
from ostro.entrypoints.fit.bandwidth import measure_bandwidth
from ostro.entrypoints.fit.room import Cache, Growth, cache_of, growths, room_of
from ostro.entrypoints.fit.weights import Weights, weigh

STREAMS = (1, 2, 4, 8, 16, 32)
"""Sequences at once that are looked at."""

SHORTEST, STEP = 1024, 4
"""The shortest context that is looked at, and how many times longer the next is."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A format: its weights; the room for a cache beside them, 0 where they do not fit; the context
    that an engine has there, and how many sequences of it at once; tokens per second of one of them
    at its beginning, at most. None where nothing is remembered, and so no tokens are drawn.
    """

    weights: Weights
    room: int
    context: int | None
    streams: int | None
    speed: float | None


@dataclass(frozen=True, kw_only=True)
class FitReport:
    """All that was found. `contexts` are bytes of the cache in `kv_dtype`, by context and sequences
    at once: those that fit beside the weights of `example`, the largest format that fits.
    """

    model: str
    architecture: str
    device: str
    dtype: str
    kv_dtype: str
    free: int
    bandwidth: float
    fits: Sequence[Fit]
    growths: Sequence[Growth]
    example: str | None
    contexts: Mapping[int, Mapping[int, int]]

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def report(path: Path, settings: Settings, plugins: PluginManager) -> FitReport:
    """What fits of the model at a path. Raises an OstroError as loading it would."""
    set_threads(settings.threads)
    found = outline(path, settings, plugins)
    with closing(found.container):
        return report_of(found, path, settings, plugins)


def report_of(
    found: ModelOutline, path: Path, settings: Settings, plugins: PluginManager
) -> FitReport:
    free, cache = free_bytes(found.device), cache_of(found, path, settings, plugins)
    every = weigh(found, Sizes(found, settings, plugins), plugins)
    bandwidth = measure_bandwidth(found.device)
    fits = [fit(weights, free, bandwidth, cache, found, settings) for weights in every]
    example = next((each for each in fits if each.room and each.streams), None)
    return FitReport(
        model=path.name,
        architecture=found.architecture.name,
        device=str(found.device),
        dtype=str(found.dtype).removeprefix("torch."),
        kv_dtype=settings.kv_dtype,
        free=free,
        bandwidth=bandwidth,
        fits=fits,
        growths=list(growths(found, path, settings, plugins)) if cache.kinds else [],
        example=example.weights.name if example else None,
        contexts=contexts(cache, example.room) if example else {},
    )


def fit(
    weights: Weights,
    free: int,
    bandwidth: float,
    cache: Cache,
    found: ModelOutline,
    settings: Settings,
) -> Fit:
    room = room_of(settings, found.device, max(0, free - weights.nbytes))
    if not cache.kinds:
        return Fit(weights=weights, room=room, context=None, streams=None, speed=None)
    context = cache.context
    if settings.context is None:
        context = largest_context(cache.kinds, room, context, cache.rows, cache.block)
    streams = cache.streams(room, context, settings.max_seqs) if room else 0
    speed = bandwidth / weights.read
    return Fit(weights=weights, room=room, context=context, streams=streams, speed=speed)


def contexts(cache: Cache, room: int) -> dict[int, dict[int, int]]:
    """Bytes of the cache by context and sequences at once, those that there is room for."""
    lengths, length = list[int](), SHORTEST
    while length < cache.context:
        lengths.append(length)
        length *= STEP
    return {
        length: {
            streams: cache.nbytes(length, streams)
            for streams in STREAMS
            if cache.streams(room, length, streams) == streams
        }
        for length in (*lengths, cache.context)
    }
