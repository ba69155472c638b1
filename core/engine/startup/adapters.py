"""Builds the adapter pool and the adapter registry of a loaded model, and probes adapters."""

from __future__ import annotations

from pathlib import Path

import torch

from ostro.core.adapters.adapter import LoadedAdapter, Mixture, WeightedAdapter
from ostro.core.adapters.loader import AdapterLoader
from ostro.core.adapters.pool import AdapterPool
from ostro.core.adapters.registry import Registry, check_name
from ostro.core.adapters.store import AdapterStore
from ostro.core.adapters.targets import TargetResolver
from ostro.core.device import parse_size
from ostro.core.engine.runner import ModelRunner
from ostro.core.engine.standalone import are_available, are_in_use, count_blocks
from ostro.core.errors import UsageError
from ostro.core.load.describe import target_of
from ostro.core.load.model import LoadedModel
from ostro.core.nn import Head, Linear
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings

HOST_BYTES = 8 << 30
"""Bytes of adapters in host memory, the default of --adapter-memory."""

PROBE_LENGTH = 8
"""Tokens of the prompt that shows whether an adapter has an effect."""


def build_adapter_pool(loaded: LoadedModel, settings: Settings, rows: int) -> AdapterPool:
    """Build a pool for --adapter-slots adapters of rank 16, and mixtures for all sequences.

    `rows` is the number of rows of a step. Raises UsageError for an invalid --adapter-slots.
    """
    if not 1 <= settings.adapter_slots <= 4096:
        raise UsageError(f"--adapter-slots {settings.adapter_slots} is not within 1..4096")
    return AdapterPool(
        pages=settings.adapter_slots,
        # An adapter may begin within a prompt: such a sequence has one mixture before, one after.
        rows=2 * settings.max_seqs + 2,
        scaling_rows=rows,
        target=target_of(loaded.device, loaded.dtype, settings),
        placement=loaded.placement,
    )


def reserve(adapter_pool: AdapterPool, loaded: LoadedModel, settings: Settings) -> None:
    """Allocate the delta of each linear before the cache takes the remaining memory.

    Only if the settings allow adapters. On CPU, memory is allocated at its first use anyway.
    """
    sources = settings.adapters, settings.adapter_folder, settings.adapter_root
    if loaded.device.type == "cpu" or not (any(sources) or settings.adapter_resolvers):
        return
    for module in loaded.model.modules():
        if isinstance(module, Linear) and not isinstance(module, Head):
            adapter_pool.delta(module).allocate()


def build_registry(
    loaded: LoadedModel,
    settings: Settings,
    plugins: PluginManager,
    adapter_pool: AdapterPool,
    runner: ModelRunner | None = None,
) -> Registry:
    """Build the registry of a model and register the adapters of the settings.

    Their files are read later. Raises UsageError for invalid settings.
    """
    path, metadata = loaded.path, loaded.container.metadata
    loader = AdapterLoader(
        path, metadata, TargetResolver(loaded.model, loaded.names), adapter_pool, plugins, settings
    )
    memory = settings.adapter_memory
    size = HOST_BYTES if memory is None else parse_size(memory)
    store = AdapterStore(
        adapter_pool,
        lambda adapter: None if runner is None else probe(runner, adapter_pool, adapter),
        host_bytes=int(size),
        may_probe=lambda: runner is None or has_room(runner),
    )
    registry = Registry(loader, store, max_adapters=settings.max_adapters)
    for entry in settings.adapters:
        name, equals, reference = entry.partition("=")
        if not equals or not reference:
            raise UsageError(f"--adapter {entry!r}: expected NAME=REFERENCE")
        check_name(name)
        registry.register(name, reference, pinned=True)
    if settings.adapter_folder is not None:
        folder = Path(settings.adapter_folder).expanduser()
        if not folder.is_dir():
            raise UsageError(f"--adapters {settings.adapter_folder}: folder not found")
        registry.register_folder(folder)
    return registry


def has_room(runner: ModelRunner) -> bool:
    """Whether the cache has room for `probe` now, or no sequence that will make room."""
    blocks = runner.blocks
    needed = count_blocks(blocks, PROBE_LENGTH, passes=2)
    return are_available(blocks, needed) or not are_in_use(blocks)


@torch.inference_mode()
def probe(runner: ModelRunner, adapter_pool: AdapterPool, adapter: LoadedAdapter) -> float | None:
    """The change of the last hidden states of a few tokens by an adapter, relative to the base.

    None if the adapter does not fit on the device now, or if it changes modules that text does not
    use. Sets `adapter.encodes` if it changes encoders of media.
    """
    lease = adapter_pool.acquire(Mixture((WeightedAdapter(adapter, 1.0),)))
    if lease is None:
        return None
    try:
        for delta in adapter_pool.deltas.values():
            delta.applied = False
        vocab = runner.sampler.vocab
        # Spread over the vocabulary, whose ends are often untrained.
        tokens = [vocab * (i + 1) // (PROBE_LENGTH + 2) for i in range(PROBE_LENGTH)]
        base, mixed = runner.states(tokens), runner.states(tokens, lease)
        own = [delta for each in (adapter, *adapter.members) for delta in each.deltas]
        # A text does not pass through encoders: a delta that was not called belongs to one.
        adapter.encodes = not all(delta.applied for delta in own)
        effect = float((mixed - base).norm() / base.norm().clamp(min=1e-30))
        # Cross attention has no effect without a medium: an effect of 0 proves nothing then.
        unknown = runner.blocks.cross_groups and not effect
        return None if unknown or not any(delta.applied for delta in own) else effect
    finally:
        adapter_pool.release(lease)
