"""Makes the registry of a loaded model: room on the device, names, and how effect is shown."""

from __future__ import annotations

from pathlib import Path

import torch

from ostro.core.adapters.adapter import LoadedAdapter, Mixture, WeightedAdapter
from ostro.core.adapters.loader import AdapterLoader
from ostro.core.adapters.pool import AdapterPool
from ostro.core.adapters.registry import Registry, check_name
from ostro.core.adapters.targets import TargetResolver
from ostro.core.device import parse_size
from ostro.core.engine.runner import ModelRunner
from ostro.core.errors import UsageError
from ostro.core.load.describe import target_of
from ostro.core.load.model import LoadedModel
from ostro.core.nn import Head, Linear
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Settings

HOST_BYTES = 8 << 30
"""Bytes of adapters that are kept on the host, where --adapter-memory does not say."""

PROBE = 8
"""Tokens of the prompt with which an adapter shows its effect."""


def build_adapter_pool(loaded: LoadedModel, settings: Settings, rows: int) -> AdapterPool:
    """Room for --adapter-slots adapters of rank 16, and mixtures for all sequences; `rows` of a
    step.
    """
    if not 1 <= settings.adapter_slots <= 4096:
        raise UsageError(f"--adapter-slots {settings.adapter_slots} is not within 1..4096")
    return AdapterPool(
        pages=settings.adapter_slots,
        lanes=2 * settings.max_seqs + 2,
        drawn=rows,
        target=target_of(loaded.device, loaded.dtype, settings),
        placement=loaded.placement,
    )


def reserve(adapter_pool: AdapterPool, loaded: LoadedModel, settings: Settings) -> None:
    """Take the room for adapters before the cache takes all there is, where adapters will come: a
    table for each linear of a layer. On CPU memory is taken when it is used.
    """
    coming = settings.adapters, settings.adapter_folder, settings.adapter_root
    if loaded.device.type == "cpu" or not (any(coming) or settings.adapter_resolvers):
        return
    for module in loaded.model.modules():
        if isinstance(module, Linear) and not isinstance(module, Head):
            adapter_pool.table(module)


def build_registry(
    loaded: LoadedModel,
    settings: Settings,
    plugins: PluginManager,
    adapter_pool: AdapterPool,
    runner: ModelRunner | None = None,
) -> Registry:
    """The registry of a model, with the adapters that the settings name; they are not read yet."""
    path, metadata = loaded.path, loaded.container.metadata
    loader = AdapterLoader(
        path, metadata, TargetResolver(loaded.model, loaded.names), adapter_pool, plugins, settings
    )
    asked = settings.adapter_memory
    size = HOST_BYTES if asked is None else parse_size(asked)
    registry = Registry(
        loader,
        adapter_pool,
        lambda adapter: None if runner is None else probe(runner, adapter_pool, adapter),
        most=settings.max_adapters,
        host_bytes=int(size),
    )
    for entry in settings.adapters:
        name, equals, reference = entry.partition("=")
        if not equals or not reference:
            raise UsageError(f"--adapter {entry!r}: write NAME=REFERENCE")
        check_name(name)
        registry.register(name, reference, pinned=True)
    if settings.adapter_folder is not None:
        folder = Path(settings.adapter_folder).expanduser()
        if not folder.is_dir():
            raise UsageError(f"--adapters {settings.adapter_folder}: there is no such folder")
        registry.register_folder(folder)
    return registry


@torch.inference_mode()
def probe(runner: ModelRunner, adapter_pool: AdapterPool, adapter: LoadedAdapter) -> float | None:
    """How much an adapter changes the last hidden states of a few tokens, relative to the base.

    None where there is no room to try, or where it changes what text does not pass through; it is
    noted then that it changes what encoders make of media. Raises AdapterError where what it makes
    is no number.
    """
    held = adapter_pool.hold(Mixture((WeightedAdapter(adapter, 1.0),)))
    if held is None:
        return None
    tables = list(adapter_pool.tables.values())
    try:
        for table in tables:
            table.heard = False
        vocab = runner.sampler.vocab
        tokens = [vocab * (i + 1) // (PROBE + 2) for i in range(PROBE)]
        base, mixed = (runner.states(tokens, under) for under in (None, held))
        mine = [t for a in (adapter, *adapter.members) for t in a.tables]
        adapter.encodes = not all(table.heard for table in mine)
        effect = float((mixed - base).norm() / base.norm().clamp(min=1e-30))
        unseen = runner.blocks.cross_groups and not effect  # by a text that looks at no medium
        return None if unseen or not any(table.heard for table in mine) else effect
    finally:
        adapter_pool.let_go(held)
