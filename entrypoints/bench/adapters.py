"""Benchmark of the cost of adapters: requests without adapters, with idle ones, and one each.

The three phases alternate in one process, so that all see the same state of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from math import sqrt
from statistics import median
from time import perf_counter

import torch

from ostro.core.adapters.adapter import EMPTY, Mixture
from ostro.core.adapters.registry import Registry
from ostro.core.adapters.weights import AdapterWeights, LowRank
from ostro.core.engine.engine import Engine
from ostro.core.errors import UsageError
from ostro.core.messages.requests import AdapterRef
from ostro.core.nn import Head, Linear
from ostro.entrypoints.bench.figures import Row, Trace, summarize, title
from ostro.entrypoints.bench.local import random_prompts, run

PHASES = ("base", "idle adapters", "an adapter each")


@dataclass(frozen=True)
class Costs:
    """Rows of the three phases and the cost of adapters.

    host_bytes: weights in host memory. table_bytes: pool on the device. swap_ms: median time to
    load an adapter from host memory into the pool.
    """

    rows: list[Row]
    registered: int
    resident: int
    host_bytes: int
    table_bytes: int
    swap_ms: float

    def describe(self) -> str:
        """Return a summary in one line."""
        return (
            f"{self.registered} adapters registered, {self.resident} resident; "
            f"{self.host_bytes / 2**20:.0f} MiB on the host, {self.table_bytes / 2**20:.0f} MiB of "
            f"tables; {self.swap_ms:.1f} ms to swap one in"
        )


def measure_costs(
    engine: Engine,
    *,
    adapters: int,
    rank: int,
    prompt: int,
    tokens: int,
    runs: int,
    concurrency: int,
) -> Costs:
    """Register random adapters on all linears of the layers; run one warm-up and `runs` rounds."""
    registry = engine.registry
    assert registry is not None, "engines have one"
    adapter_pool = registry.store.adapter_pool
    names = [f"adapter {i}" for i in range(adapters)]
    registry.max_adapters = max(registry.max_adapters, adapters)
    registry.store.host_bytes = 1 << 50
    for i, name in enumerate(names):
        if name not in registry.aliases:
            registry.add(name, random_adapter(registry, rank, i))
    mixtures = [registry.mixture([AdapterRef(name=name)]) for name in names]
    turns = cycle(mixtures)
    traces: dict[str, list[list[Trace]]] = {phase: [] for phase in PHASES}
    for turn in range(runs + 1):
        for number, phase in enumerate(PHASES):
            adapter_pool.detach() if number == 0 else attach_all(registry)
            chosen = list(islice(turns, concurrency)) if number == 2 else [EMPTY] * concurrency
            seed = 10_000 * concurrency + 3 * turn + number
            prompts = random_prompts(engine.vocab, prompt, concurrency, 0, seed)
            found = run(engine, prompts, tokens, cache=engine.prefix_cache, mixtures=chosen)
            traces[phase] += [found] if turn else []
    name = title(prompt, tokens, ())
    return Costs(
        rows=[summarize(f"{name}, {phase}", found) for phase, found in traces.items()],
        registered=adapters,
        resident=len(adapter_pool.adapters),
        host_bytes=sum(adapter.nbytes for adapter in registry.store.adapters.values()),
        table_bytes=adapter_pool.nbytes,
        swap_ms=median(swaps(registry, mixtures)),
    )


def attach_all(registry: Registry) -> None:
    """Attach all adapters to their modules."""
    changes = registry.store.adapter_pool.changes
    for adapter in registry.store.adapters.values():
        registry.store.adapter_pool.attach(adapter)
    registry.store.adapter_pool.changes = changes  # the captured graphs stay valid


def swaps(registry: Registry, mixtures: list[Mixture], most: int = 32) -> Iterator[float]:
    """Yield the milliseconds to load each evicted adapter into the pool again."""
    adapter_pool = registry.store.adapter_pool
    for mixture in mixtures[:most]:
        adapter = mixture.shares[0].adapter
        adapter_pool.evict_unused(adapter.generation)
        start = perf_counter()
        lease = adapter_pool.acquire(mixture)
        if adapter_pool.target.device.type == "cuda":
            torch.cuda.synchronize()
        yield 1e3 * (perf_counter() - start)
        assert lease is not None, "the pool has room: nothing else runs"
        adapter_pool.release(lease)


def random_adapter(registry: Registry, rank: int, seed: int) -> AdapterWeights:
    """Return random factors for every linear except heads. Raises UsageError without linears."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, slot in registry.loader.resolver.slots.items():
        if slot.kind == "storage" and isinstance(slot.module, Linear):
            if isinstance(slot.module, Head):
                continue
            n, k = slot.shape
            a = torch.randn(rank, k, generator=generator) / sqrt(k)
            b = torch.randn(n, rank, generator=generator) * (1e-3 / sqrt(rank))
            weights[name] = LowRank(a=a, b=b)
    if not weights:
        raise UsageError("--with-adapters: this model has no linear layers to adapt")
    return AdapterWeights(kind="lora", weights=weights)
