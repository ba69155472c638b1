"""The engine: batching, prefix cache, preemption, priority and abort, in both loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch

from ostro.core.engine.engine import Engine
from ostro.core.errors import ContextLengthExceeded, RequestError
from ostro.core.messages.outputs import TokenOutput
from ostro.core.messages.requests import Dry, Sampling, TokenRequest
from ostro.plugins.conformance.parity import Subject, greedy

Build = Callable[..., Engine]
GREEDY = Sampling(temperature=0, max_tokens=16, ignore_eos=True)


def ask(id: str, tokens: Sequence[int], rules: Sampling = GREEDY, **fields: object) -> TokenRequest:
    return TokenRequest(id=id, tokens=list(tokens), sampling=rules, **fields)  # type: ignore[arg-type]


def answers(outputs: Sequence[TokenOutput]) -> dict[tuple[str, int], list[int]]:
    generated: dict[tuple[str, int], list[int]] = {}
    for output in outputs:
        generated.setdefault((output.id, output.index), []).extend(output.tokens)
    return generated


def run(engine: Engine, *requests: TokenRequest) -> dict[tuple[str, int], list[int]]:
    for request in requests:
        engine.submit(request)
    return answers(engine.drain())


def test_a_repeated_prompt_hits_the_prefix_cache(llama: Subject, engine_of: Build) -> None:
    engine = engine_of(llama)
    first = run(engine, ask("a", llama.prompt))
    engine.submit(ask("b", llama.prompt))
    outputs = engine.drain()
    assert outputs[0].cached == 48, "three of the four blocks of 60 tokens are full"
    assert answers(outputs)["b", 0] == first["a", 0]


def test_the_next_turn_reuses_the_generated_tokens(llama: Subject, engine_of: Build) -> None:
    engine = engine_of(llama)
    generated = run(engine, ask("a", llama.prompt))["a", 0]
    engine.submit(ask("b", [*llama.prompt, *generated, 5]))
    assert engine.drain()[0].cached == 64


@pytest.mark.parametrize("second", [{"salt": "other"}, {"cache": False}])
def test_salts_and_uncached_requests_share_nothing(
    llama: Subject, engine_of: Build, second: dict[str, object]
) -> None:
    engine = engine_of(llama)
    first = ask("a", llama.prompt, **({} if "salt" in second else second))
    run(engine, first)
    engine.submit(ask("b", llama.prompt, **({**second} if "salt" in second else {})))
    assert engine.drain()[0].cached == 0


def test_without_prefix_cache_nothing_is_reused(llama: Subject, engine_of: Build) -> None:
    engine = engine_of(llama)
    engine.prefix_cache = False
    run(engine, ask("a", llama.prompt))
    engine.submit(ask("b", llama.prompt))
    assert engine.drain()[0].cached == 0


def test_preemption_does_not_change_outputs(llama: Subject, engine_of: Build) -> None:
    prompts = [llama.prompt[i : i + 30] for i in range(6)]
    wanted = greedy(engine_of(llama), prompts, 40)
    crowded = engine_of(llama, blocks=11)
    assert greedy(crowded, prompts, 40) == wanted
    assert crowded.stats().preemptions > 0
    assert crowded.stats().blocks_used == 0


def test_the_least_recently_used_blocks_are_evicted(llama: Subject, engine_of: Build) -> None:
    engine = engine_of(llama, blocks=8)
    for i in range(5):
        run(engine, ask(str(i), llama.prompt[i : i + 40]))
    engine.submit(ask("old", llama.prompt[:40]))
    assert engine.drain()[0].cached == 0
    assert engine.stats().blocks_used == 0


def test_abort_releases_every_block_at_once(llama: Subject, engine_of: Build) -> None:
    engine = engine_of(llama, rows=20)
    for id in "abc":
        engine.submit(ask(id, llama.prompt))
    for passes in range(5):
        engine.step()
        assert engine.stats().blocks_used > 0, f"{passes = }"
    for id in "abc":
        engine.abort(id)
    assert engine.stats().blocks_used == 0
    engine.abort("never seen")
    assert engine.drain() == []
    assert (
        run(engine, ask("d", llama.prompt))["d", 0]
        == greedy(engine_of(llama), [llama.prompt], 16)[0]
    )


def test_abort_of_one_choice_leaves_the_others(llama: Subject, engine_of: Build) -> None:
    rules = Sampling(n=3, seed=7, max_tokens=40, ignore_eos=True)
    wanted = run(engine_of(llama), ask("a", llama.prompt, rules))
    engine = engine_of(llama)
    engine.submit(ask("a", llama.prompt, rules))
    outputs = [output for _ in range(6) for output in engine.step()]
    used = engine.stats().blocks_used
    dropped = engine.abort("a", 1)
    assert [(o.id, o.index, o.finish) for o in dropped] == [("a", 1, "abort")]
    assert engine.stats().running == 2 and engine.stats().blocks_used < used
    assert engine.abort("a", 1) == [], "it has ended already"
    outputs += engine.drain()
    generated = answers(outputs)
    assert generated["a", 0] == wanted["a", 0] and generated["a", 2] == wanted["a", 2]
    assert (
        0 < len(generated["a", 1]) < 8
        and generated["a", 1] == wanted["a", 1][: len(generated["a", 1])]
    )
    assert engine.stats().generated_tokens == sum(map(len, generated.values()))
    assert engine.stats().blocks_used == 0 and not engine.live


def test_priority_goes_first_and_preempts(llama: Subject, engine_of: Build) -> None:
    engine = engine_of(llama, max_seqs=1)
    engine.submit(ask("late", llama.prompt[:20], priority=5))
    engine.step()
    engine.submit(ask("soon", llama.prompt[:20], priority=-1))
    finished = [output.id for output in engine.drain() if output.finish]
    assert finished == ["soon", "late"]


def test_a_window_releases_blocks(mistral: Subject, engine_of: Build) -> None:
    engine = engine_of(mistral, rows=16)
    engine.submit(ask("a", mistral.prompt, Sampling(temperature=0, max_tokens=60, ignore_eos=True)))
    most = 0
    while engine.busy:
        engine.step()
        most = max(most, engine.stats().blocks_used)
    assert most <= 3, "a window of 8 tokens and a chunk of 16 never need more blocks of 16"


def test_choices_share_the_prompt_and_differ(llama: Subject, engine_of: Build) -> None:
    rules = Sampling(n=4, seed=7, max_tokens=8, ignore_eos=True)
    engine = engine_of(llama)
    generated = run(engine, ask("a", llama.prompt, rules))
    assert len({tuple(tokens) for tokens in generated.values()}) == 4
    assert run(engine_of(llama), ask("a", llama.prompt, rules)) == generated


def test_a_seed_does_not_depend_on_the_batch(llama: Subject, engine_of: Build) -> None:
    rules = Sampling(temperature=0.9, top_p=0.95, top_k=40, seed=3, max_tokens=20, ignore_eos=True)
    alone = run(engine_of(llama), ask("a", llama.prompt, rules))["a", 0]
    others = [
        ask(str(i), llama.prompt[i:40], Sampling(temperature=1.3, max_tokens=9, ignore_eos=True))
        for i in range(5)
    ]
    crowd = run(engine_of(llama, rows=24), *others[:3], ask("a", llama.prompt, rules), *others[3:])
    assert crowd["a", 0] == alone
    other = Sampling(**{f: getattr(rules, f) for f in rules.__struct_fields__ if f != "seed"})
    assert run(engine_of(llama), ask("a", llama.prompt, other))["a", 0] != alone


def test_logprobs_are_those_of_the_reference(llama: Subject, engine_of: Build) -> None:
    rules = Sampling(temperature=0, max_tokens=5, ignore_eos=True, logprobs=3, prompt_logprobs=2)
    engine = engine_of(llama, rows=13)
    engine.submit(ask("a", llama.prompt, rules))
    outputs = engine.drain()
    tokens = [*llama.prompt, *answers(outputs)["a", 0]]
    reference = llama.run_reference(tokens).log_softmax(-1)
    prompt = next(o.prompt_logprobs for o in outputs if o.prompt_logprobs)
    generated = [o.logprobs[0] for o in outputs if o.logprobs]
    assert prompt[0] is None and len(prompt) == len(llama.prompt) and len(generated) == 5
    for at, entry in enumerate([*prompt[1:], *generated]):
        assert entry is not None and entry.token == tokens[at + 1]
        assert entry.logprob == pytest.approx(float(reference[at, entry.token]), abs=1e-4)
        best = reference[at].topk(len(entry.top))
        assert [id for id, _ in entry.top] == best.indices.tolist()
        torch.testing.assert_close(
            torch.tensor([p for _, p in entry.top]), best.values, atol=1e-4, rtol=0
        )


def test_stop_ids_and_max_tokens_end_a_text(llama: Subject, engine_of: Build) -> None:
    free = greedy(engine_of(llama), [llama.prompt], 16)[0]
    stop = free[5]
    first = free.index(stop)

    def finish(rules: Sampling) -> tuple[list[int], str | None]:
        engine = engine_of(llama)
        engine.submit(ask("a", llama.prompt, rules))
        outputs = engine.drain()
        return answers(outputs)["a", 0], outputs[-1].finish

    assert finish(GREEDY) == (free, "length")
    stopped = Sampling(temperature=0, max_tokens=16, stop_ids=(stop,))
    assert finish(stopped) == (free[:first], "stop")
    later = Sampling(temperature=0, max_tokens=16, stop_ids=(stop,), min_tokens=first + 1)
    assert stop not in finish(later)[0][: first + 1] and len(finish(later)[0]) > first


def test_eos_ends_unless_ignored(llama: Subject, engine_of: Build) -> None:
    free = greedy(engine_of(llama), [llama.prompt], 8)[0]
    for rules, generated in (
        (Sampling(temperature=0, max_tokens=8), []),
        (Sampling(temperature=0, max_tokens=8, ignore_eos=True), free),
    ):
        engine = engine_of(llama)
        engine.eos_ids = engine.runner.sampler.eos = frozenset({free[0]})
        assert run(engine, ask("a", llama.prompt, rules)).get(("a", 0), []) == generated


def test_biases_and_penalties_change_the_draw(llama: Subject, engine_of: Build) -> None:
    free = greedy(engine_of(llama), [llama.prompt], 16)[0]
    banned = Sampling(temperature=0, max_tokens=16, ignore_eos=True, logit_bias={free[0]: -100.0})
    assert free[0] not in run(engine_of(llama), ask("a", llama.prompt, banned))["a", 0]
    forced = Sampling(temperature=0, max_tokens=4, ignore_eos=True, logit_bias={99: 100.0})
    assert run(engine_of(llama), ask("a", llama.prompt, forced))["a", 0] == [99] * 4
    never = Sampling(temperature=0, max_tokens=30, ignore_eos=True, presence_penalty=100.0)
    generated = run(engine_of(llama), ask("a", llama.prompt, never))["a", 0]
    assert len(set(generated)) == 30
    dry = Dry(multiplier=100.0, allowed_length=1, base=2.0)
    forced = Sampling(
        temperature=0, max_tokens=8, ignore_eos=True, logit_bias={99: 50.0, 98: 49.0}, dry=dry
    )
    generated = run(engine_of(llama), ask("a", llama.prompt, forced))["a", 0]
    pairs = list(pairwise(generated))
    assert len(set(pairs)) == len(pairs), "no pair is generated twice"


def test_penalties_survive_preemption(llama: Subject, engine_of: Build) -> None:
    rules = Sampling(temperature=0, max_tokens=40, ignore_eos=True, frequency_penalty=1.5)
    requests = [ask(str(i), llama.prompt[i : i + 30], rules) for i in range(6)]
    crowded = engine_of(llama, blocks=11)
    assert run(crowded, *requests) == run(engine_of(llama), *requests)
    assert crowded.stats().preemptions > 0


@pytest.mark.parametrize(
    ("tokens", "rules", "error"),
    [
        ([], GREEDY, RequestError),
        ([1, 128], GREEDY, RequestError),
        ([-1], GREEDY, RequestError),
        ([1] * 256, GREEDY, ContextLengthExceeded),
        ([1], Sampling(temperature=float("nan")), RequestError),
        ([1], Sampling(top_p=0.0), RequestError),
        ([1], Sampling(n=10**9), RequestError),
        ([1], Sampling(logit_bias={500: 1.0}), RequestError),
        ([1], Sampling(max_tokens=0), RequestError),
    ],
)
def test_invalid_requests_do_not_change_the_engine(
    llama: Subject, engine_of: Build, tokens: list[int], rules: Sampling, error: type[Exception]
) -> None:
    engine = engine_of(llama)
    with pytest.raises(error):
        engine.submit(ask("bad", tokens, rules))
    assert not engine.busy
    assert len(run(engine, ask("good", llama.prompt))["good", 0]) == 16


def test_a_context_contains_prompt_and_output(llama: Subject, engine_of: Build) -> None:
    engine = engine_of(llama)
    for prompt, max_tokens, count in ((240, 16, 16), (255, 1, 1), (250, 50, 6), (255, None, 1)):
        engine.submit(ask("a", [5] * prompt, Sampling(max_tokens=max_tokens, ignore_eos=True)))
        outputs = engine.drain()
        assert len(answers(outputs)["a", 0]) == count and outputs[-1].finish == "length"
    scored = Sampling(max_tokens=0, prompt_logprobs=0)
    engine.submit(ask("a", [5] * 256, scored))
    assert len(engine.drain()[0].prompt_logprobs or ()) == 256
    for prompt, rules in ((256, GREEDY), (257, scored)):
        with pytest.raises(ContextLengthExceeded, match=f"is 256 tokens.* in {prompt} tokens"):
            engine.submit(ask("a", [5] * prompt, rules))


def test_deterministic_logits_do_not_depend_on_the_batch(llama: Subject) -> None:
    prompts = [llama.prompt[:n] for n in (1, 2, 7, 16, 17, 33, 50)]

    def logits(deterministic: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        loaded = llama.load(deterministic=deterministic)
        runner = llama.engine(loaded, deterministic=deterministic).runner
        return [runner.logits(p) for p in prompts], [runner.logits(p, 3) for p in prompts]

    whole, chunked = logits(True)
    assert all(torch.equal(a, b) for a, b in zip(whole, chunked, strict=True))
    whole, chunked = logits(False)
    assert not all(torch.equal(a, b) for a, b in zip(whole, chunked, strict=True))
