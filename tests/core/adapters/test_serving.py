"""Adapters in the engine loop: selection per request, swapping, replacement, prefix cache keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from tiny.adapters import adapter

from ostro.core.adapters.adapter import EMPTY, Mixture
from ostro.core.adapters.mixture_table import MixtureEntry
from ostro.core.engine.engine import Engine
from ostro.core.messages.requests import AdapterRef, Sampling, TokenRequest
from ostro.plugins.conformance.parity import Subject, greedy

Build = Callable[..., Engine]


def asked(engine: Engine, tokens: Sequence[int] = (), **scales: float) -> Mixture:
    assert engine.registry is not None
    return engine.registry.mixture([AdapterRef(name=n, scale=s) for n, s in scales.items()], tokens)


def add(engine: Engine, made: Subject, *seeds: int, rank: int = 4) -> None:
    assert engine.registry is not None
    for seed in seeds:
        engine.registry.add(f"a{seed}", adapter(made, seed, rank))


def prompts(count: int, length: int = 20) -> list[list[int]]:
    return [[(7 * i + 3 * j) % 100 + 1 for j in range(length)] for i in range(count)]


def test_every_row_says_what_it_says_alone(llama: Subject, engine_of: Build) -> None:
    """The base, three adapters, and two mixtures with one of these adapters at two scales."""
    engine = engine_of(llama)
    add(engine, llama, 1, 2, 3)
    mixtures = [
        EMPTY,
        asked(engine, a1=1.0),
        asked(engine, a2=1.0),
        asked(engine, a3=1.0),
        asked(engine, a1=0.3, a2=0.7),
        asked(engine, a1=0.9, a3=-0.5),
    ]
    texts = [prompts(1)[0]] * 6
    together = greedy(engine, texts, 24, mixtures)
    assert len({tuple(text) for text in together}) == 6, "every mixture says something else"
    for text, mixture, said in zip(texts, mixtures, together, strict=True):
        assert greedy(engine, [text], 24, [mixture]) == [said]
    engine.close()


@pytest.mark.parametrize("rank", [4, 40])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(llama: Subject, rank: int) -> None:
    engine = llama.engine(deterministic=True)
    add(engine, llama, 1, 2, rank=rank)
    assert engine.runner.adapter_pool is not None
    chosen = [EMPTY, asked(engine, a1=1.0), asked(engine, a1=0.5, a2=0.5)]
    helds = [engine.runner.adapter_pool.acquire(mixture) for mixture in chosen]
    texts = prompts(3, 17)
    together, step = engine.runner.hidden(texts, leases=[h for h in helds if h])
    for i, (text, held) in enumerate(zip(texts, helds, strict=True)):
        assert held is not None
        alone, _ = engine.runner.hidden([text], leases=[held])
        assert torch.equal(together[step.bounds[i] : step.bounds[i + 1]], alone), i
    engine.close()


def test_more_adapters_than_there_is_room_for_take_turns(llama: Subject, engine_of: Build) -> None:
    engine = engine_of(llama, adapter_slots=2)
    add(engine, llama, *range(1, 7))
    mixtures = [asked(engine, **{f"a{i}": 1.0}) for i in range(1, 7)]
    texts = prompts(6)
    together = greedy(engine, texts, 10, mixtures)
    adapter_pool = engine.runner.adapter_pool
    assert adapter_pool is not None and len(adapter_pool.adapters) == 2 and adapter_pool.swaps >= 6
    roomy = engine_of(llama)
    add(roomy, llama, *range(1, 7))
    alone = [
        greedy(roomy, [text], 10, [asked(roomy, **{f"a{i}": 1.0})])[0]
        for i, text in enumerate(texts, 1)
    ]
    assert together == alone
    assert not any(row for row in adapter_pool.rows), "every row was released"
    roomy.close()
    engine.close()


def test_a_swap_captures_nothing_again(llama: Subject) -> None:
    engine = llama.engine(replay=True, adapter_slots=2)
    engine.runner.capture()
    add(engine, llama, 1, 2, 3, 4)
    greedy(engine, prompts(1), 4, [asked(engine, a1=1.0)])
    before = dict(engine.runner.decode_buckets.mixed)
    assert before
    greedy(engine, prompts(3), 4, [asked(engine, **{f"a{i}": 1.0}) for i in (2, 3, 4)])
    now = engine.runner.decode_buckets.mixed
    assert all(now[size] is bucket for size, bucket in before.items())
    engine.close()


def test_decode_steps_with_adapters_are_taped(llama: Subject) -> None:
    engine = llama.engine()
    engine.runner.capture()
    add(engine, llama, 1)
    greedy(engine, prompts(1), 4, [asked(engine, a1=1.0)])
    assert engine.runner.decode_buckets.mixed, engine.runner.graphs.refused
    engine.close()


def test_the_prefix_cache_tells_adapters_and_scales_apart(llama: Subject, engine_of: Build) -> None:
    engine = engine_of(llama)
    add(engine, llama, 1, 2)
    text = prompts(1, 64)
    fresh = {}
    kinds = {"base": {}, "one": {"a1": 1.0}, "half": {"a1": 0.5}, "both": {"a1": 1.0, "a2": 1.0}}
    for name, scales in kinds.items():
        cached = engine.stats().cached_tokens
        fresh[name] = greedy(engine, text, 8, [asked(engine, **scales)])
        assert engine.stats().cached_tokens == cached, f"{name} read another's blocks"
    for name, scales in kinds.items():
        cached = engine.stats().cached_tokens
        assert greedy(engine, text, 8, [asked(engine, **scales)]) == fresh[name]
        assert engine.stats().cached_tokens > cached, f"{name} found nothing of its own"
    engine.close()


@pytest.mark.slow
def test_many_activated_adapters_prefill_a_prompt_once(llama: Subject, engine_of: Build) -> None:
    """aLoRA: K/V blocks before the invocation are those of the base, and shared."""
    engine, invocation, count = engine_of(llama), (90, 91), 50
    assert engine.registry is not None
    engine.registry.max_adapters = count
    for i in range(count):
        engine.registry.add(f"a{i}", adapter(llama, i, 1, invocation))
    before = prompts(1, 80)[0]
    text = [*before, *invocation, 5, 6]
    said = [
        greedy(engine, [text], 3, [asked(engine, text, **{f"a{i}": 1.0})])[0] for i in range(count)
    ]
    stats = engine.stats()
    assert stats.cached_tokens == (count - 1) * 80, (
        "all but the first found all before the invocation"
    )
    assert len({tuple(each) for each in said}) > 5
    base = greedy(engine, [text], 3)[0]
    assert engine.stats().cached_tokens >= count * 80
    without = [*before, 5, 6]
    assert asked(engine, without, a1=1.0) is EMPTY, "not invoked: the base alone"
    assert any(each != base for each in said)
    engine.close()


def test_an_activated_adapter_applies_from_its_invocation_on(llama: Subject) -> None:
    """Logits before the invocation equal the base's, those after it do not."""
    engine = llama.engine()
    assert engine.registry is not None and engine.runner.adapter_pool is not None
    engine.registry.add("late", adapter(llama, 1, 4, (90, 91)))
    text = [*prompts(1, 40)[0], 90, 91, 7, 8, 9]
    held = engine.runner.adapter_pool.acquire(asked(engine, text, late=1.0))
    assert held is not None
    base, late = engine.runner.logits(text), engine.runner.logits(text, lease=held)
    assert torch.allclose(base[:40], late[:40], atol=1e-5)
    assert not torch.allclose(base[40:], late[40:], atol=1e-2)
    engine.close()


def test_an_activated_adapter_applies_to_later_steps(llama: Subject) -> None:
    """Chunks of the prompt and tokens of the answer, as in one step of all of them."""
    engine = llama.engine(rows=16)
    assert engine.registry is not None and engine.runner.adapter_pool is not None
    engine.registry.add("late", adapter(llama, 1, 4, (90, 91)))
    text = [*prompts(1, 20)[0], 90, 91, *prompts(2, 20)[1]]
    mixture = asked(engine, text, late=1.0)
    [answer] = greedy(engine, [text], 12, [mixture])
    held = engine.runner.adapter_pool.acquire(mixture)
    assert held is not None
    logits = engine.runner.logits([*text, *answer], lease=held)
    assert logits[len(text) - 1 : -1].argmax(-1).tolist() == answer
    engine.close()


def test_replacing_an_adapter_leaves_running_requests_unchanged(
    llama: Subject, engine_of: Build
) -> None:
    """200 requests, 20 swaps of one alias: each answer is that of exactly one generation."""
    engine = engine_of(llama, max_seqs=8, blocks=128)
    assert engine.registry is not None
    versions = [adapter(llama, seed) for seed in (1, 2)]
    text = prompts(1, 40)[0]
    truth = {}
    for weights in versions:
        engine.registry.add("x", weights, inplace=True)
        truth[weights.generation] = greedy(engine, [text], 12, [asked(engine, x=1.0)])[0]
    assert len({tuple(said) for said in truth.values()}) == 2
    answers: dict[str, list[int]] = {}
    used: dict[str, tuple[str, ...]] = {}
    sent = swapped = 0
    rules = Sampling(temperature=0, max_tokens=12, ignore_eos=True)
    while sent < 200 or engine.busy:
        if sent < 200:
            engine.submit(
                TokenRequest(id=str(sent), tokens=text, sampling=rules), asked(engine, x=1.0)
            )
            sent += 1
            if sent % 10 == 0:
                engine.registry.add("x", versions[swapped % 2], inplace=True)
                swapped += 1
        for output in engine.step():
            answers.setdefault(output.id, []).extend(output.tokens)
            if output.generations:
                used[output.id] = output.generations
            assert output.finish in (None, "length")
    assert swapped == 20 and len(answers) == len(used) == 200
    for id, said in answers.items():
        assert said == truth[used[id][0]], f"request {id}"
    assert len({generations for generations in used.values()}) == 2
    assert not engine.registry.store.use_counts
    engine.close()


def test_requests_without_adapters_do_not_wait_for_adapters(
    llama: Subject, engine_of: Build
) -> None:
    """With one slot, the second adapter waits for the first; a later base request does not wait."""
    engine = engine_of(llama, adapter_slots=1)
    add(engine, llama, 1, 2)
    rules = Sampling(temperature=0, max_tokens=30, ignore_eos=True)
    asks = {"first": {"a1": 1.0}, "second": {"a2": 1.0}, "third": {"a2": 1.0}, "base": {}}
    for id, scales in asks.items():
        tokens = prompts(1)[0]
        engine.submit(TokenRequest(id=id, tokens=tokens, sampling=rules), asked(engine, **scales))
    ended = [output.id for output in engine.drain() if output.finish]
    assert ended == ["first", "base", "second", "third"]
    assert engine.runner.adapter_pool is not None and not engine.runner.adapter_pool.rows
    engine.close()


def test_a_waiting_request_loads_no_adapter_to_the_device(
    llama: Subject, engine_of: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mixture is written once, when its request starts, not in each step before."""
    engine = engine_of(llama, max_seqs=1)
    add(engine, llama, 1)
    adapter_pool, written = engine.runner.adapter_pool, list[int]()
    assert adapter_pool is not None
    write = adapter_pool.mixtures.write

    def noted(row: int, entries: Sequence[MixtureEntry]) -> None:
        written.append(row)
        write(row, entries)

    monkeypatch.setattr(adapter_pool.mixtures, "write", noted)
    rules = Sampling(temperature=0, max_tokens=10, ignore_eos=True)
    for id, mixture in {"base": EMPTY, "behind": asked(engine, a1=1.0)}.items():
        engine.submit(TokenRequest(id=id, tokens=prompts(1)[0], sampling=rules), mixture)
    engine.drain()
    assert len(written) == 1
    engine.close()
