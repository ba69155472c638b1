"""Builds the engine of a loaded model: groups its caches, plans memory, captures, warms up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

import msgspec
import torch

from ostro.core.adapters.pool import AdapterPool
from ostro.core.cache import CacheKind, CacheSpec
from ostro.core.engine.blocks import BlockManager, BlockPool, CacheGroup
from ostro.core.engine.buckets import PROMPT_ROWS
from ostro.core.engine.draft_length import MAX_ROWS as ROWS_WITH_DRAFTS
from ostro.core.engine.engine import Engine
from ostro.core.engine.graphs import Graphs
from ostro.core.engine.pooling import PoolingEngine
from ostro.core.engine.proposers.build_speculation import build_speculation
from ostro.core.engine.proposers.draft_model import DraftModel
from ostro.core.engine.runner import ModelRunner
from ostro.core.engine.sampler import Sampler
from ostro.core.engine.scheduler import Scheduler
from ostro.core.engine.startup.adapters import build_adapter_pool, build_registry, reserve
from ostro.core.engine.startup.memory import BLOCK, budget, largest_context, most_bytes, plan_blocks
from ostro.core.engine.vocabulary import read_vocabulary
from ostro.core.errors import CheckpointError, Unsupported, UsageError
from ostro.core.failure import Failures
from ostro.core.load.describe import DTYPES
from ostro.core.load.model import LoadedModel, describe
from ostro.core.load.open import begin_id
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.nn import CachedLayer, TokenModel
from ostro.core.ops import Target
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Settings, resolve

ROWS = {"cuda": 4096, "cpu": 512}
"""Rows of one step: enough to fill the device, few enough that decodes do not wait long."""

MAX_CPU_GRAPH_ROWS = 8
"""Rows of the largest decode step that is captured on CPU: Python is a small part of larger ones.
"""

MAX_REPLAYED_ROWS = 64
"""Rows of the largest bucket of prompts in replay mode on the CPU, which computes idle rows too."""

PROBE = 128
"""Tokens of the prompt that shows whether float16 overflows."""

DRAFT_PROBE = (0,)
"""The prompt that shows whether the weights of a draft model are damaged."""

QUANTIZED_KV = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
"""Quantized dtypes of the K/V cache, stored with scales; not every cache kind supports them."""


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
    device = loaded.device
    block = block or BLOCK[device.type]
    own = cache_kinds(loaded, settings, plugins, block)
    kinds = [*own, *draft_kinds(loaded, settings, plugins, block)]
    if settings.kv_dtype in QUANTIZED_KV:
        explain_quantized_kv(loaded, settings.kv_dtype, [kind for kind, _ in own])
    seqs = settings.max_seqs
    if seqs < 1:
        raise UsageError(f"--max-seqs {seqs}: at least one sequence must run")
    rows = rows or ROWS[device.type]
    # Before the cache, which takes all the remaining memory.
    adapter_pool = adapter_pool or reserve_adapters(loaded, settings, rows)
    counts = [blocks] * len(kinds) if blocks else []
    if not blocks:
        counts = count_blocks([kind for kind, _ in kinds], loaded, settings, rows, block, sizes)
    groups = []
    for (kind, layers), count in zip(kinds, counts, strict=True):
        kind.allocate(count)
        groups.append(CacheGroup(kind, layers, BlockPool(count)))
    groups, draft_groups = groups[: len(own)], groups[len(own) :]
    target = Target(device=device, dtype=torch.float32, deterministic=settings.deterministic)
    eos = frozenset(eos_ids)
    vocab = int(loaded.config.vocab_size)
    processors = plugins.collect("logits_processors").values()
    # Read with the first request that has processors: most servers never need it.
    reader = partial(read_vocabulary, loaded, settings, plugins, eos)
    conflicts = plugins.conflicts("logits_processors")
    sampler = Sampler(seqs, vocab, target, eos, processors, reader, conflicts)
    loaded.explain += [describe(choice) for choice in sampler.choices]
    asynchronous = device.type == "cuda" or settings.replay
    segments = loaded.placement.segments(settings.replay) if asynchronous else None
    # A CPU graph does not capture the layers of other devices.
    graph_rows = min(seqs, MAX_CPU_GRAPH_ROWS) if loaded.placement.transfers is None else 0
    captured = seqs if asynchronous else graph_rows
    if settings.speculate is not None and captured:
        captured = max(captured, min(2 * captured, ROWS_WITH_DRAFTS))
    block_manager, prompts = BlockManager(groups, block), captured_prompts(settings, device, rows)
    context = block_manager.max_length(loaded.context, rows)
    runner = ModelRunner(
        cast(TokenModel, loaded.model),  # of an encoder the runner calls `hidden` only
        block_manager,
        sampler,
        context=context,
        dtype=loaded.dtype,
        captured=captured,
        captured_prompts=prompts,
        replay=settings.replay,
        segments=segments,
        adapter_pool=adapter_pool,
    )
    speculation = build_speculation(
        loaded,
        settings,
        plugins,
        runner,
        draft_groups,
        rows=rows,
        captured=captured,
        captured_prompts=prompts,
    )
    scheduler = Scheduler(
        block_manager,
        runner.features,
        max_rows=rows,
        max_seqs=seqs,
        adapter_pool=adapter_pool,
        speculation=speculation,
    )
    return Engine(
        runner,
        scheduler,
        vocab=vocab,
        context=context,
        eos_ids=eos,
        # A lag only helps if launches return before the device is done.
        lag=int(asynchronous),
        identity=cache_identity(loaded, settings),
        prefix_cache=prefix_cache,
        registry=build_registry(loaded, settings, plugins, adapter_pool, runner),
        failures=Failures(plugins.explain, device),
    )


def captured_prompts(settings: Settings, device: torch.device, rows: int) -> int:
    """The rows of the largest step with prompts that is captured, of those that may have `rows`.

    On the CPU, Python takes a small part of such a step. Deterministic attention would compute its
    parts for the whole context.
    """
    if settings.deterministic or not (settings.replay or device.type == "cuda"):
        return 0
    return min(rows, PROMPT_ROWS[-1] if device.type == "cuda" else MAX_REPLAYED_ROWS)


def reserve_adapters(
    loaded: LoadedModel, settings: Settings, rows: int | None = None
) -> AdapterPool:
    """The adapter pool of a model, for steps of `rows`, with the memory that it reserves."""
    adapter_pool = build_adapter_pool(loaded, settings, rows or ROWS[loaded.device.type])
    reserve(adapter_pool, loaded, settings)
    return adapter_pool


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


def make_ready(engine: Engine, loaded: LoadedModel, *, lazily: bool = False) -> None:
    """Check that the logits of a model are finite, and capture its decode steps.

    With `lazily`, the CPU captures each size of step when it first occurs. Raises CheckpointError
    for NaN or Inf: the weights are damaged, or float16 is too narrow.
    """
    check_finite(engine.runner.logits(probe_prompt(engine, loaded)), loaded)
    with torch.inference_mode():
        engine.runner.capture(lazily=lazily and engine.lag == 0)
    runner = engine.runner
    if runner.segments is not None:
        loaded.explain += runner.segments.describe()
    for name, buckets in (
        ("prompts", runner.prompt_buckets),
        ("decode steps", runner.decode_buckets),
    ):
        if buckets.refused and not buckets.plain and not buckets.uncaptured:
            loaded.explain.append(f"{name}: not captured: {buckets.refused}")
    if (draft := draft_model(engine)) is not None and loaded.draft is not None:
        check_finite(draft.runner.logits(DRAFT_PROBE), loaded.draft)
        with torch.inference_mode():
            draft.runner.capture(lazily=lazily and engine.lag == 0)


def draft_model(engine: Engine) -> DraftModel | None:
    """The draft model of an engine, if it has one."""
    speculation = engine.scheduler.speculation
    proposer = None if speculation is None else speculation.proposer
    return proposer if isinstance(proposer, DraftModel) else None


def probe_prompt(engine: Engine, loaded: LoadedModel) -> list[int]:
    """A prompt whose logits show damaged weights and overflows.

    It begins with BOS, whose hidden states are larger than those of other tokens in many models. In
    float16, `PROBE` tokens of the whole vocabulary follow, else one.
    """
    begin = begin_id(loaded.container, loaded.raw_config)
    first = [begin] if begin is not None and 0 <= begin < engine.vocab else []
    count = max(min(PROBE, engine.context - 1), 1) if loaded.dtype == torch.float16 else 1
    start, vocab = probe_token(engine), engine.vocab
    ordinary = [(start + i * vocab // count) % vocab for i in range(count)]
    return [*first, *ordinary][: engine.context]


def check_finite(values: torch.Tensor, loaded: LoadedModel) -> None:
    """Raise CheckpointError if the outputs of a model contain NaN or Inf."""
    if values.isfinite().all():
        return
    cause = "its weights are damaged: download its files again"
    if loaded.dtype == torch.float16:
        cause = f"float16 overflows (try --dtype bfloat16 or float32), or {cause}"
    raise CheckpointError(f"{loaded.path.name}: the model's outputs contain NaN or Inf; {cause}")


def make_pooling_ready(engine: PoolingEngine, loaded: LoadedModel, *, warm: bool) -> None:
    """Compute `warm_up_vectors`. Raises CheckpointError if one contains NaN or Inf."""
    for vectors in warm_up_vectors(engine, warm=warm):
        check_finite(vectors, loaded)


def warm_up_vectors(engine: PoolingEngine, *, warm: bool) -> Iterator[torch.Tensor]:
    """The vector of a short input; with `warm`, also of those that compile all kernels."""
    most = min(engine.max_rows, engine.context) if warm else 2
    for length, _ in warm_up_cases(most, engine.runner.device.type):
        yield engine.read([[engine.vocab // 2] * length], None, "vectors")


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


def warm_up(engine: Engine) -> None:
    """Compile all kernels: draw two tokens from each case of `warm_up_cases`."""
    sampler, most = engine.runner.sampler, min(engine.scheduler.max_rows, engine.context - 2)
    for length, rules in warm_up_cases(most, engine.runner.device.type):
        prompt = [probe_token(engine)] * length
        engine.submit(TokenRequest(id="warm-up", tokens=prompt, sampling=rules, cache=False))
        engine.drain()
    sampler.counts = sampler.seen = None  # large, and only for requests with penalties
    engine.counters = type(engine.counters)()  # the metrics count requests of users only


def warm_up_cases(most: int, device: str) -> list[tuple[int, Sampling]]:
    """Lengths of prompts up to `most`, and the parameters of their draws.

    Kernels for the CPU have variants for few and for many rows. Those for CUDA have variants for
    powers of two of the rows, and for rules of sampling; each is compiled when it first runs.
    """
    greedy = Sampling(temperature=0, max_tokens=2, ignore_eos=True)
    if device == "cpu":
        return [(length, greedy) for length in (2, 17) if length <= most]
    changes: list[dict[str, Any]] = [
        {"temperature": 1},
        {"temperature": 1, "top_p": 0.9},
        {"repetition_penalty": 1.1},
        {"logit_bias": {0: 1.0}},
    ]
    rules = [msgspec.structs.replace(greedy, **change) for change in changes]
    powers = [2**i for i in range(1, most.bit_length())]
    lengths = [length for power in powers for length in (power, power + 1) if length <= most]
    return [*((length, greedy) for length in lengths), *((2, rule) for rule in rules if lengths)]


def probe_token(engine: Engine) -> int:
    """An ordinary token id: those at both ends of a vocabulary are often untrained."""
    return engine.vocab // 2
