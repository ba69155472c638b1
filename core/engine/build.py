"""Build an engine for a loaded model: group its caches, plan memory, warm up."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch

from ostro.core.cache import CacheKind, CacheSpec
from ostro.core.engine.adapters import build_adapter_pool, build_registry, reserve
from ostro.core.engine.blocks import BlockManager, BlockPool, CacheGroup
from ostro.core.engine.engine import Engine
from ostro.core.engine.failure import Failures
from ostro.core.engine.graphs import Graphs
from ostro.core.engine.memory import BLOCK, budget, largest_context, plan_blocks
from ostro.core.engine.pooling import PoolingEngine
from ostro.core.engine.request import Sampling, TokenRequest
from ostro.core.engine.runner import ModelRunner
from ostro.core.engine.sampler import Sampler
from ostro.core.engine.scheduler import Scheduler
from ostro.core.errors import CheckpointError, Unsupported, UsageError
from ostro.core.load.describe import DTYPES
from ostro.core.load.model import LoadedModel, describe
from ostro.core.nn import CachedLayer, TokenModel
from ostro.core.ops import Target
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Settings, resolve

ROWS = {"cuda": 4096, "cpu": 512}
"""Rows of one step: enough for the device's matmuls, few enough that decodes do not wait long."""

TAPED = 8
"""Rows of the largest decode step that is recorded on CPU: of larger ones Python takes little."""

MAX_THREADS = 1024

NARROW = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
"""Types of the K/V cache that are no floats to compute in: held with scales, by some kinds."""


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
    share: float = 1.0,
) -> Engine:
    """An engine over one model. `rows`, `block` and `blocks` replace what the device suggests;
    `share` is its part of the room for caches.
    """
    device = loaded.device
    block = block or BLOCK[device.type]
    kinds = cache_kinds(loaded, settings, plugins, block)
    seqs = settings.max_seqs
    if seqs < 1:
        raise UsageError(f"--max-seqs {seqs}: at least one sequence must run")
    rows = rows or ROWS[device.type]
    adapter_pool = build_adapter_pool(loaded, settings, rows)
    reserve(adapter_pool, loaded, settings)
    counts = [blocks] * len(kinds) if blocks else []
    if not blocks:
        counts = count_blocks([kind for kind, _ in kinds], loaded, settings, rows, block, share)
    groups = []
    for (kind, layers), count in zip(kinds, counts, strict=True):
        kind.allocate(count)
        groups.append(CacheGroup(kind, layers, BlockPool(count)))
    target = Target(device=device, dtype=torch.float32, deterministic=settings.deterministic)
    eos = frozenset(eos_ids)
    vocab = int(loaded.config.vocab_size)
    processors = plugins.collect("logits_processors").values()
    sampler = Sampler(seqs, vocab, target, eos, processors)
    loaded.explain += [describe(choice) for choice in sampler.choices]
    ahead = device.type == "cuda" or settings.replay
    segments = loaded.placement.segments(settings.replay) if ahead else None
    captured = seqs if ahead else min(seqs, TAPED) if loaded.placement.transfers is None else 0
    held = BlockManager(groups, block)
    context = held.longest(loaded.context, rows)
    runner = ModelRunner(
        cast(TokenModel, loaded.model),  # an encoder is never asked for logits
        held,
        sampler,
        context=context,
        dtype=loaded.dtype,
        captured=captured,
        replay=settings.replay,
        segments=segments,
        adapter_pool=adapter_pool,
    )
    return Engine(
        runner,
        Scheduler(held, runner.features, max_rows=rows, max_seqs=seqs, adapter_pool=adapter_pool),
        vocab=vocab,
        context=context,
        eos_ids=eos,
        lag=int(ahead),
        identity=key_root(loaded, settings),
        prefix_cache=prefix_cache,
        registry=build_registry(loaded, settings, plugins, adapter_pool, runner),
        failures=Failures(plugins.explain, device),
    )


def count_blocks(
    kinds: Sequence[CacheKind],
    loaded: LoadedModel,
    settings: Settings,
    rows: int,
    block: int,
    share: float,
) -> list[int]:
    """Blocks per group, for a share of the room on the device where it lies. Shortens the context
    to what there is room for, where none was asked for.
    """
    places = {kind.device: [k for k in kinds if k.device == kind.device] for kind in kinds}
    sizes = {device: int(share * budget(settings, device)) for device in places}
    if settings.context is None:
        for device, mine in places.items():
            loaded.context = largest_context(mine, sizes[device], loaded.context, rows, block)
    counts: dict[CacheKind, int] = {}
    for device, mine in places.items():
        planned = plan_blocks(mine, sizes[device], loaded.context, rows, settings.max_seqs)
        counts |= zip(mine, planned, strict=True)
    return [counts[kind] for kind in kinds]


def cache_kinds(
    loaded: LoadedModel, settings: Settings, plugins: PluginManager, block: int
) -> list[tuple[CacheKind, tuple[int, ...]]]:
    """One cache kind per group of layers with equal specs on one device, in the order of their
    first layers.
    """
    specs: dict[tuple[CacheSpec, torch.device], list[int]] = {}
    for module in loaded.model.modules():
        if isinstance(module, CachedLayer):
            key = module.spec, loaded.placement.device(module)
            specs.setdefault(key, []).append(module.layer)
    asked = settings.kv_dtype
    types = {"auto": loaded.dtype, **DTYPES, **NARROW}
    if asked not in types:
        raise UsageError(f"--kv-dtype {asked!r}: write one of {', '.join(types)}")
    kinds = []
    for (spec, device), layers in specs.items():
        kind = resolve(plugins.get("caches", spec.kind).kind)
        dtype = types[asked]
        if asked in NARROW and not kind.narrows(spec, dtype):
            dtype = loaded.dtype
        made = kind(spec, len(layers), block=block, dtype=dtype, device=device)
        kinds.append((made, tuple(layers)))
    if asked in NARROW:
        explain_narrow(loaded, asked, [kind for kind, _ in kinds])
    return kinds


def explain_narrow(loaded: LoadedModel, asked: str, kinds: Sequence[CacheKind]) -> None:
    """Say what is held in the type that was asked for. Raises Unsupported where nothing can be."""
    narrow = [kind.dtype in NARROW.values() for kind in kinds]
    if kinds and not any(narrow):
        names = sorted({kind.spec.kind for kind in kinds})
        raise Unsupported(
            f"--kv-dtype {asked}: {loaded.path.name} ({loaded.architecture.name}) remembers no "
            f"keys and values of heads, but what its cache ({', '.join(names)}) holds in floats "
            "alone; leave the option out"
        )
    for kind, is_narrow in zip(kinds, narrow, strict=True):
        size = kind.bytes(1) // kind.block
        how = f"{asked}, {size} bytes per token" if is_narrow else "not narrowed, held in floats"
        loaded.explain.append(f"{kind.layers} x cache {kind.spec.kind}: {how}")


def renew(engine: Engine, loaded: LoadedModel, settings: Settings) -> None:
    """Go on with weights that have changed in place: other block keys, other graphs."""
    engine.identity = key_root(loaded, settings)
    if engine.runner.adapter_pool is not None:
        engine.runner.adapter_pool.renew()
    engine.runner.graphs = Graphs()
    make_ready(engine, loaded)


def key_root(loaded: LoadedModel, settings: Settings) -> str:
    """What names the weights and the K/V type of an engine."""
    return f"{loaded.identity} {settings.kv_dtype}"


def make_ready(engine: Engine, loaded: LoadedModel) -> None:
    """Capture the decode steps of a model that computes numbers.

    Raises CheckpointError where it does not: its weights are damaged, or float16 is too narrow.
    """
    check_finite(engine.runner.logits([middle(engine)]), loaded)
    with torch.inference_mode():
        engine.runner.capture()
    if engine.runner.segments is not None:
        loaded.explain += engine.runner.segments.describe()
    elif engine.runner.sizes and not engine.runner.buckets:
        why = engine.runner.graphs.refused
        loaded.explain.append(f"decode steps: not captured, for {why}")


def check_finite(values: torch.Tensor, loaded: LoadedModel) -> None:
    """Raise CheckpointError for outputs of a model that contain NaN or Inf."""
    if values.isfinite().all():
        return
    cause = "its weights are damaged: fetch its files again"
    if loaded.dtype == torch.float16:
        cause = f"float16 is too narrow for it (try --dtype bfloat16 or float32), or {cause}"
    raise CheckpointError(f"{loaded.path.name}: the model's outputs contain NaN or Inf; {cause}")


def make_pooling_ready(reader: PoolingEngine, loaded: LoadedModel, *, warm: bool) -> None:
    """Compute the vector of a short input; with `warm` that of a longer one too, so that the
    kernels of both shapes are compiled.

    Raises CheckpointError where one contains NaN or Inf.
    """
    for length in (2, 17) if warm else (2,):
        if length <= reader.context:
            tokens = [reader.vocab // 2] * length
            check_finite(reader.read([tokens], None, "vectors"), loaded)


@contextmanager
def ready_engine(
    loaded: LoadedModel, settings: Settings, plugins: PluginManager, *, rows: int, blocks: int
) -> Iterator[Engine]:
    """An engine that measures a loaded model; the context closes both. See `build_engine`."""
    engine = build_engine(loaded, settings, plugins, (), rows=rows, blocks=blocks)
    try:
        make_ready(engine, loaded)
        yield engine
    finally:
        engine.close()
        loaded.container.close()


def warm_up(engine: Engine) -> None:
    """Compile: draw one token from a prompt of each shape that the loop knows."""
    rules = Sampling(temperature=0, max_tokens=2, ignore_eos=True)
    for length in (2, 17):
        if length < engine.context:
            prompt = [middle(engine)] * length
            engine.submit(
                TokenRequest(id=f"warm-up {length}", tokens=prompt, sampling=rules, cache=False)
            )
            engine.drain()
    engine.counters = type(engine.counters)()


def middle(engine: Engine) -> int:
    """A token that every text may hold: the ends of a vocabulary are often never trained."""
    return engine.vocab // 2


def set_threads(threads: int | None) -> None:
    """Threads of CPU kernels: what is asked for, else one per core this process may use.

    Raises UsageError for a number that no machine has.
    """
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise UsageError(f"--threads {threads} is not within 1..{MAX_THREADS}")
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
