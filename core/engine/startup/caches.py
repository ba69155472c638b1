"""The caches of a model: their kinds, the number of their blocks, and their memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from ostro.core.cache import CacheKind, CacheSpec
from ostro.core.engine.blocks import BlockPool, CacheGroup
from ostro.core.engine.startup.memory import (
    BLOCK,
    ROWS,
    budget,
    largest_context,
    most_bytes,
    plan_blocks,
)
from ostro.core.errors import Unsupported, UsageError
from ostro.core.load.describe import DTYPES
from ostro.core.load.model import LoadedModel
from ostro.core.nn import CachedLayer
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.core.settings import Settings

QUANTIZED_KV = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
"""Quantized dtypes of the K/V cache, stored with scales; not every cache kind supports them."""


def allocate_caches(
    loaded: LoadedModel,
    settings: Settings,
    plugins: PluginManager,
    *,
    rows: int,
    block: int,
    blocks: int | None,
    sizes: Mapping[torch.device, int] | None,
) -> tuple[list[CacheGroup], list[CacheGroup]]:
    """Allocate the caches of a model and of its draft model; the arguments as in `build_engine`.

    Raises as `cache_kinds`, and InsufficientMemory.
    """
    own = cache_kinds(loaded, settings, plugins, block)
    kinds = [*own, *draft_kinds(loaded, settings, plugins, block)]
    if settings.kv_dtype in QUANTIZED_KV:
        explain_quantized_kv(loaded, settings.kv_dtype, [kind for kind, _ in own])
    counts = [blocks] * len(kinds) if blocks else []
    if not blocks:
        counts = count_blocks([kind for kind, _ in kinds], loaded, settings, rows, block, sizes)
    groups = []
    for (kind, layers), count in zip(kinds, counts, strict=True):
        kind.allocate(count)
        groups.append(CacheGroup(kind, layers, BlockPool(count)))
    return groups[: len(own)], groups[len(own) :]


def count_blocks(
    kinds: Sequence[CacheKind],
    loaded: LoadedModel,
    settings: Settings,
    rows: int,
    block: int,
    sizes: Mapping[torch.device, int] | None,
) -> list[int]:
    """Blocks per group, within the bytes for caches of the group's device.

    Without --context, shortens the model's context to what fits.
    """
    by_device = {kind.device: [k for k in kinds if k.device == kind.device] for kind in kinds}
    if sizes is None:
        sizes = {device: budget(settings, device) for device in by_device}
    # All devices first: the shortest context holds for the layers of every device.
    if settings.context is None:
        for device, here in by_device.items():
            loaded.context = largest_context(here, sizes[device], loaded.context, rows, block)
    counts: dict[CacheKind, int] = {}
    for device, here in by_device.items():
        planned = plan_blocks(here, sizes[device], loaded.context, rows, settings.max_seqs)
        counts |= zip(here, planned, strict=True)
    return [counts[kind] for kind in kinds]


def cache_kinds(
    loaded: LoadedModel, settings: Settings, plugins: PluginManager, block: int
) -> list[tuple[CacheKind, tuple[int, ...]]]:
    """A cache kind, with its layers, for each group of layers with equal specs on one device.

    Groups are in the order of their first layers. Raises UsageError for an unknown --kv-dtype,
    Unsupported if no group supports it.
    """
    specs: dict[tuple[CacheSpec, torch.device], list[int]] = {}
    for module in loaded.model.modules():
        if isinstance(module, CachedLayer) and (spec := module.spec) is not None:
            key = spec, loaded.placement.device(module)
            specs.setdefault(key, []).append(module.layer)
    kv_dtype = settings.kv_dtype
    types = {"auto": loaded.dtype, **DTYPES, **QUANTIZED_KV}
    if kv_dtype not in types:
        raise UsageError(f"--kv-dtype {kv_dtype!r}: expected one of {', '.join(types)}")
    kinds = []
    for (spec, device), layers in specs.items():
        kind = resolve(plugins.get("caches", spec.kind).kind)
        dtype = types[kv_dtype]
        # A model may mix kinds: the rest of its layers are quantized all the same.
        if kv_dtype in QUANTIZED_KV and not kind.supports_quantized(spec, dtype):
            dtype = loaded.dtype
        instance = kind(spec, len(layers), block=block, dtype=dtype, device=device)
        kinds.append((instance, tuple(layers)))
    quantized = [kind.dtype in QUANTIZED_KV.values() for kind, _ in kinds]
    if kv_dtype in QUANTIZED_KV and kinds and not any(quantized):
        names = sorted({kind.spec.kind for kind, _ in kinds})
        raise Unsupported(
            f"--kv-dtype {kv_dtype} is not supported by {loaded.path.name} "
            f"({loaded.architecture.name}): its cache ({', '.join(names)}) stores floats only; "
            "leave the option out"
        )
    return kinds


def draft_kinds(
    loaded: LoadedModel, settings: Settings, plugins: PluginManager, block: int
) -> list[tuple[CacheKind, tuple[int, ...]]]:
    """The cache kinds of the draft model, as `cache_kinds`; none without one.

    They store floats: --kv-dtype is that of the model alone.
    """
    if loaded.draft is None:
        return []
    return cache_kinds(loaded.draft, replace(settings, kv_dtype="auto"), plugins, block)


def cache_needs(
    loaded: LoadedModel, settings: Settings, plugins: PluginManager
) -> dict[torch.device, int]:
    """The most bytes that the caches of a model can use, by device. Raises as `cache_kinds`."""
    device, needs = loaded.device, Counter[torch.device]()
    block = BLOCK[device.type]
    kinds = cache_kinds(loaded, settings, plugins, block)
    for kind, _ in [*kinds, *draft_kinds(loaded, settings, plugins, block)]:
        needs[kind.device] += most_bytes(
            [kind], loaded.context, ROWS[device.type], settings.max_seqs
        )
    return needs


def explain_quantized_kv(loaded: LoadedModel, kv_dtype: str, kinds: Sequence[CacheKind]) -> None:
    """Explain which groups are quantized."""
    for kind in kinds:
        size = kind.bytes(1) // kind.block
        is_quantized = kind.dtype in QUANTIZED_KV.values()
        how = f"{kv_dtype}, {size} bytes per token" if is_quantized else "floats, not quantized"
        loaded.explain.append(f"{kind.layers} x cache {kind.spec.kind}: {how}")
