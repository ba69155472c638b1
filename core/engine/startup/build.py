"""Builds the engine of a loaded model: its caches, runners, speculation and scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch

from ostro.core.adapters.pool import AdapterPool
from ostro.core.engine.blocks import BlockManager
from ostro.core.engine.buckets import PROMPT_ROWS
from ostro.core.engine.draft_length import MAX_ROWS as ROWS_WITH_DRAFTS
from ostro.core.engine.engine import Engine
from ostro.core.engine.graphs import Graphs
from ostro.core.engine.proposers.build_speculation import build_speculation, check_draft
from ostro.core.engine.runner import ModelRunner
from ostro.core.engine.sampler import Sampler
from ostro.core.engine.scheduler import Scheduler
from ostro.core.engine.startup.adapters import build_adapter_pool, build_registry, reserve
from ostro.core.engine.startup.caches import allocate_caches
from ostro.core.engine.startup.memory import BLOCK, ROWS
from ostro.core.engine.startup.warm_up import make_ready
from ostro.core.engine.vocabulary import read_vocabulary
from ostro.core.errors import UsageError
from ostro.core.failure import Failures
from ostro.core.load.model import LoadedModel, describe
from ostro.core.nn import AssistantModel, TokenModel
from ostro.core.ops import Target
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings

MAX_CPU_GRAPH_ROWS = 8
"""Rows of the largest decode step that is captured on CPU: Python is a small part of larger ones.
"""

MAX_REPLAYED_ROWS = 64
"""Rows of the largest bucket of prompts in replay mode on the CPU, which computes idle rows too."""


@dataclass(frozen=True)
class StepSizes:
    """The rows of one step, and of the largest steps that are captured: see `ModelRunner`."""

    rows: int
    captured: int
    captured_prompts: int


def build_engine(
    loaded: LoadedModel,
    settings: Settings,
    plugins: PluginManager,
    eos_ids: Iterable[int],
    *,
    rows: int | None = None,
    block: int | None = None,
    blocks: int | None = None,
    prefix_cache: bool = True,
    adapter_pool: AdapterPool | None = None,
    sizes: Mapping[torch.device, int] | None = None,
) -> Engine:
    """Build the engine of one model.

    `rows` per step, tokens per `block` and `blocks` per group have defaults that depend on the
    device. `adapter_pool` is that of `reserve_adapters` for the same rows, `sizes` are the bytes
    for caches by device; by default they are made here. Raises UsageError for invalid settings,
    InsufficientMemory if the cache does not fit.
    """
    seqs, rows = settings.max_seqs, rows or ROWS[loaded.device.type]
    if seqs < 1:
        raise UsageError(f"--max-seqs {seqs}: at least one sequence must run")
    block = block or BLOCK[loaded.device.type]
    # Before the caches, which take all the remaining memory.
    adapter_pool = adapter_pool or reserve_adapters(loaded, settings, rows)
    groups, draft_groups = allocate_caches(
        loaded, settings, plugins, rows=rows, block=block, blocks=blocks, sizes=sizes
    )
    eos, steps = frozenset(eos_ids), step_sizes(loaded, settings, rows)
    sampler = build_sampler(loaded, settings, plugins, eos)
    runner = build_runner(
        loaded, settings, BlockManager(groups, block), sampler, steps, adapter_pool
    )
    draft_runner = build_draft_runner(
        loaded, settings, plugins, BlockManager(draft_groups, block), steps
    )
    speculation = build_speculation(loaded, settings, plugins, runner, draft_runner, rows)
    scheduler = Scheduler(
        runner.blocks,
        runner.features,
        max_rows=rows,
        max_seqs=seqs,
        adapter_pool=adapter_pool,
        speculation=speculation,
    )
    return Engine(
        runner,
        scheduler,
        vocab=sampler.vocab,
        context=runner.context,
        eos_ids=eos,
        # A lag only helps if launches return before the device is done.
        lag=int(is_asynchronous(loaded, settings)),
        identity=cache_identity(loaded, settings),
        prefix_cache=prefix_cache,
        registry=build_registry(loaded, settings, plugins, adapter_pool, runner),
        failures=Failures(plugins.explain, loaded.device),
        draft_runner=draft_runner,
    )


def is_asynchronous(loaded: LoadedModel, settings: Settings) -> bool:
    """Whether launches of steps return before the device is done."""
    return loaded.device.type == "cuda" or settings.replay


def step_sizes(loaded: LoadedModel, settings: Settings, rows: int) -> StepSizes:
    """The sizes of steps of up to `rows` rows."""
    if is_asynchronous(loaded, settings):
        captured = settings.max_seqs
    else:
        # A CPU graph does not capture the layers of other devices.
        is_whole = loaded.placement.transfers is None
        captured = min(settings.max_seqs, MAX_CPU_GRAPH_ROWS) if is_whole else 0
    if settings.speculate is not None and captured:
        captured = max(captured, min(2 * captured, ROWS_WITH_DRAFTS))
    return StepSizes(rows, captured, captured_prompts(settings, loaded.device, rows))


def captured_prompts(settings: Settings, device: torch.device, rows: int) -> int:
    """The rows of the largest step with prompts that is captured, of those that may have `rows`.

    On the CPU, Python takes a small part of such a step. Deterministic attention would compute its
    parts for the whole context.
    """
    if settings.deterministic or not (settings.replay or device.type == "cuda"):
        return 0
    return min(rows, PROMPT_ROWS[-1] if device.type == "cuda" else MAX_REPLAYED_ROWS)


def build_sampler(
    loaded: LoadedModel, settings: Settings, plugins: PluginManager, eos_ids: frozenset[int]
) -> Sampler:
    """The sampler of a model, with the logits processors of plugins."""
    sampler = Sampler(
        settings.max_seqs,
        int(loaded.config.vocab_size),
        sampling_target(loaded, settings),
        eos_ids,
        plugins.collect("logits_processors").values(),
        # Read with the first request that has processors: most servers never need it.
        partial(read_vocabulary, loaded, settings, plugins, eos_ids),
        plugins.conflicts("logits_processors"),
    )
    loaded.explain += [describe(choice) for choice in sampler.choices]
    return sampler


def sampling_target(loaded: LoadedModel, settings: Settings) -> Target:
    """What the operations of a sampler compute with."""
    return Target(device=loaded.device, dtype=torch.float32, deterministic=settings.deterministic)


def build_runner(
    loaded: LoadedModel,
    settings: Settings,
    blocks: BlockManager,
    sampler: Sampler,
    steps: StepSizes,
    adapter_pool: AdapterPool | None = None,
) -> ModelRunner:
    """The runner of a model."""
    segments = None
    if is_asynchronous(loaded, settings):
        segments = loaded.placement.segments(settings.replay)
    return ModelRunner(
        cast(TokenModel, loaded.model),  # of an encoder the runner calls `hidden` only
        blocks,
        sampler,
        context=blocks.max_length(loaded.context, steps.rows),
        dtype=loaded.dtype,
        captured=steps.captured,
        captured_prompts=steps.captured_prompts,
        replay=settings.replay,
        segments=segments,
        adapter_pool=adapter_pool,
    )


def build_draft_runner(
    loaded: LoadedModel,
    settings: Settings,
    plugins: PluginManager,
    blocks: BlockManager,
    steps: StepSizes,
) -> ModelRunner | None:
    """The runner of a draft model; None without one, and for an assistant, which has no cache.

    blocks: those of its caches. Raises UsageError if it cannot draft for the model.
    """
    draft = loaded.draft
    if draft is None or isinstance(draft.model, AssistantModel):
        return None
    check_draft(loaded, draft, settings, plugins, blocks)
    vocab, target = int(draft.config.vocab_size), sampling_target(draft, settings)
    # Drafts are the most likely tokens: only its device and its row of last tokens are used.
    return build_runner(draft, settings, blocks, Sampler(1, vocab, target, frozenset()), steps)


def reserve_adapters(
    loaded: LoadedModel, settings: Settings, rows: int | None = None
) -> AdapterPool:
    """The adapter pool of a model, for steps of `rows`, with the memory that it reserves."""
    adapter_pool = build_adapter_pool(loaded, settings, rows or ROWS[loaded.device.type])
    reserve(adapter_pool, loaded, settings)
    return adapter_pool


def refresh(engine: Engine, loaded: LoadedModel, settings: Settings) -> None:
    """Adapt an engine to weights that changed in place: new block keys, new graphs.

    Raises as `make_ready`.
    """
    # Blocks of the old weights keep their keys, which no request has any more, until eviction.
    engine.identity = cache_identity(loaded, settings)
    if engine.runner.adapter_pool is not None:
        engine.runner.adapter_pool.invalidate()
    engine.runner.graphs = Graphs()
    make_ready(engine, loaded)


def cache_identity(loaded: LoadedModel, settings: Settings) -> str:
    """A string that identifies the weights and the K/V dtype in the keys of cache blocks."""
    return f"{loaded.identity} {settings.kv_dtype}"


@contextmanager
def ready_engine(
    loaded: LoadedModel, settings: Settings, plugins: PluginManager, *, rows: int, blocks: int
) -> Iterator[Engine]:
    """An engine for measurements; the context closes it and the model's files."""
    engine = build_engine(loaded, settings, plugins, (), rows=rows, blocks=blocks)
    try:
        make_ready(engine, loaded)
        yield engine
    finally:
        engine.close()
        loaded.close()
