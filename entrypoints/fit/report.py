"""Report of `ostro fit`: formats, KV caches, and contexts by number of sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ostro.core.device import free_bytes
from ostro.core.engine.startup.memory import largest_context
from ostro.core.load.describe import ModelOutline, outline
from ostro.core.load.open import title_of
from ostro.core.load.sizes import Sizes
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import ProgressCallback, Settings
from ostro.core.threads import THREADS
from ostro.entrypoints.fit.bandwidth import measure_bandwidth
from ostro.entrypoints.fit.draft import draft_of
from ostro.entrypoints.fit.room import Cache, Growth, cache_of, growths, room_of
from ostro.entrypoints.fit.weights import Weights, weigh

STREAMS = (1, 2, 4, 8, 16, 32)
"""Numbers of sequences to estimate."""

SHORTEST, STEP = 1024, 4
"""Shortest context to estimate, and the factor to the next one."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Estimate for one format.

    room: bytes for the KV cache, 0 if the weights do not fit. context: context length in tokens.
    streams: number of sequences of that length. speed: upper bound on tokens per second of one
    sequence at a short context. The last three are None for models without a KV cache.
    """

    weights: Weights
    room: int
    context: int | None
    streams: int | None
    speed: float | None


@dataclass(frozen=True, kw_only=True)
class FitReport:
    """All estimates. Sizes are in bytes, `bandwidth` in bytes per second.

    draft_nbytes: the weights of the draft model, or the assistant, of --speculate. The KV cache of
    a draft model is included in all sizes of KV caches.
    contexts: bytes of the KV cache in `kv_dtype`, by context and number of sequences, as far as
    they fit beside the weights of `example`, the largest format that fits.
    """

    model: str
    architecture: str
    device: str
    dtype: str
    kv_dtype: str
    free: int
    draft_nbytes: int
    bandwidth: float
    fits: Sequence[Fit]
    growths: Sequence[Growth]
    example: str | None
    contexts: Mapping[int, Mapping[int, int]]

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def report(
    path: Path,
    settings: Settings,
    plugins: PluginManager,
    progress: ProgressCallback = lambda *step: None,
) -> FitReport:
    """Estimate the model at a path. Raises the OstroError that loading it would raise."""
    THREADS.set(settings.threads)
    found = outline(path, settings, plugins)
    with closing(found.container):
        return report_of(found, path, settings, plugins, progress)


def report_of(
    found: ModelOutline,
    path: Path,
    settings: Settings,
    plugins: PluginManager,
    progress: ProgressCallback,
) -> FitReport:
    draft = draft_of(found, settings, plugins)
    free, cache = free_bytes(found.device), cache_of(found, path, settings, plugins, draft.kinds)
    every = weigh(found, Sizes(found, settings, plugins), plugins, progress)
    progress("measuring the memory bandwidth", 0, 0)
    bandwidth = measure_bandwidth(found.device)
    left = max(0, free - draft.nbytes)
    fits = [fit(weights, left, bandwidth, cache, found, settings) for weights in every]
    example = next((each for each in fits if each.room and each.streams), None)
    return FitReport(
        model=title_of(settings, path),
        architecture=found.architecture.name,
        device=str(found.device),
        dtype=str(found.dtype).removeprefix("torch."),
        kv_dtype=settings.kv_dtype,
        free=free,
        draft_nbytes=draft.nbytes,
        bandwidth=bandwidth,
        fits=fits,
        growths=list(growths(found, path, settings, plugins, draft.kinds)) if cache.kinds else [],
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
    """Return bytes of the KV cache by context and number of sequences, as far as they fit."""
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
