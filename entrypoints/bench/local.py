"""Benchmark of an engine in this process, without HTTP and chat templates."""

from __future__ import annotations

import random
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ostro.core.adapters.adapter import EMPTY
from ostro.core.errors import OstroError, UsageError
from ostro.core.messages.outputs import Stats
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.threads import THREADS
from ostro.entrypoints.bench.figures import Row, Trace, summarize, take, title

if TYPE_CHECKING:
    from ostro.core.adapters.adapter import Mixture
    from ostro.core.engine.engine import Engine


def random_prompts(vocab: int, length: int, count: int, shared: int, seed: int) -> list[list[int]]:
    """Return prompts of random tokens. Their first `shared` tokens do not depend on the seed."""
    rng = random.Random(-1)
    common = [rng.randrange(vocab) for _ in range(shared)]
    rng.seed(seed)
    return [common + [rng.randrange(vocab) for _ in range(length - shared)] for _ in range(count)]


def measure(
    engine: Engine,
    *,
    prompt: int,
    tokens: int,
    runs: int,
    concurrency: int,
    shared: int = 0,
    depth: int = 0,
    prompts: Sequence[Sequence[int]] = (),
) -> Row:
    """Run a warm-up and `runs` runs of `concurrency` requests, each run with new prompts.

    Before each prompt are `depth` tokens that the cache has. Raises UsageError if it has no room.
    """
    traces, before = [], Stats()
    contexts = [list[int]()] * concurrency
    if depth:
        contexts = random_prompts(engine.vocab, depth, concurrency, 0, seed=-concurrency - 2)
        run(engine, contexts, 0, cache=True)
    for turn in range(runs + 1):
        chosen = [list(p) for p in take(prompts, concurrency)] or random_prompts(
            engine.vocab, prompt, concurrency, shared, seed=1000 * concurrency + turn
        )
        if turn == 1:
            before = replace(engine.stats())
        chosen = [context + own for context, own in zip(contexts, chosen, strict=True)]
        traces.append(run(engine, chosen, tokens, cache=engine.prefix_cache))
        if depth:
            leave_out_cached(traces[-1], depth, engine.runner.blocks.block)
    row = summarize(title(prompt, tokens, prompts, depth), traces[1:])
    row.depth = depth
    stats = engine.stats()
    row.peak_kv_bytes = stats.peak_cache_bytes
    row.proposals = stats.proposals - before.proposals
    row.drafted_tokens = stats.drafted_tokens - before.drafted_tokens
    known = before.accepted_at or [0] * len(stats.accepted_at)
    row.accepted_at = [now - then for now, then in zip(stats.accepted_at, known, strict=True)]
    row.prefix_cache = engine.prefix_cache
    return row


def leave_out_cached(traces: Sequence[Trace], depth: int, block: int) -> None:
    """Count the computed tokens of prompts alone. Raises UsageError if the cache had too few."""
    for trace in traces:
        if trace.cached <= depth - block:
            raise UsageError(
                f"-d {depth}: the cache has no room for so many tokens before each of "
                f"{len(traces)} prompts; lower -d or --concurrency, or raise --memory"
            )
        trace.prompt -= trace.cached


def run(
    engine: Engine,
    prompts: Sequence[list[int]],
    tokens: int,
    *,
    cache: bool,
    mixtures: Sequence[Mixture] = (),
) -> list[Trace]:
    """Generate from all prompts at once and record the time of each token.

    mixtures: the adapters of each prompt. Raises OstroError if a request fails.
    """
    rules = Sampling(temperature=0, max_tokens=tokens + 1, ignore_eos=True)
    traces: dict[str, Trace] = {}
    for i, prompt in enumerate(prompts):
        request = TokenRequest(id=f"bench {i}", tokens=prompt, sampling=rules, cache=cache)
        traces[request.id] = Trace(perf_counter(), len(prompt))
        engine.submit(request, mixtures[i] if mixtures else EMPTY)
    while engine.busy:
        THREADS.follow_load()
        outputs = engine.step()
        now = perf_counter()
        for output in outputs:
            if output.error is not None:
                raise OstroError(output.error)
            trace = traces[output.id]
            trace.cached = max(trace.cached, output.cached)
            trace.times += [now] * len(output.tokens)
    return list(traces.values())
