"""The engine with recurrent models: cached states, preemption, choices, abort."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ostro.core.engine.engine import Engine
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.parity import Subject, greedy, subject

Build = Callable[..., Engine]
BLOCK = 16
NAMES = ("lfm2", "mamba2", pytest.param("qwen3_next", marks=pytest.mark.slow))
"""Two hybrid models, and one with states only."""


@pytest.fixture(scope="module", params=NAMES)
def tiny(request: pytest.FixtureRequest, plugins: PluginManager) -> Iterator[Subject]:
    with subject(plugins, request.param) as made:
        yield made


def ask(id: str, tokens: list[int], count: int = 12, **rules: object) -> TokenRequest:
    sampling = Sampling(max_tokens=count, ignore_eos=True, **{"temperature": 0, **rules})  # type: ignore[arg-type]
    return TokenRequest(id=id, tokens=tokens, sampling=sampling)


def run(engine: Engine, *requests: TokenRequest) -> dict[tuple[str, int], list[int]]:
    for request in requests:
        engine.submit(request)
    generated: dict[tuple[str, int], list[int]] = {}
    for output in engine.drain():
        generated.setdefault((output.id, output.index), []).extend(output.tokens)
    return generated


@pytest.mark.sample(2)
@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_greedy_tokens_match_the_reference(tiny: Subject, engine_of: Build, length: int) -> None:
    """20 tokens after the prompt: decoding crosses one or two block boundaries."""
    prompt = tiny.prompt[:length]
    engine = engine_of(tiny)
    reference = tiny.reference_tokens(prompt, 20)
    assert greedy(engine, [prompt], 20) == [reference]
    assert greedy(engine, [prompt], 20) == [reference], "again, with the prefix cache"
    assert engine.stats().blocks_used == 0


@pytest.mark.sample(1)
def test_a_common_prefix_resumes_from_a_cached_state(tiny: Subject, engine_of: Build) -> None:
    beginning = tiny.prompt[: 3 * BLOCK]
    first, second = [*beginning, *tiny.prompt[:7]], [*beginning, *tiny.prompt[9:20]]
    engine = engine_of(tiny)
    run(engine, ask("first", first))
    assert engine.stats().cached_tokens == 0
    generated = run(engine, ask("second", second))
    assert engine.stats().cached_tokens == len(beginning)
    assert generated["second", 0] == tiny.reference_tokens(second, 12)


@pytest.mark.sample(1)
def test_the_next_turn_resumes_from_the_last_full_block(tiny: Subject, engine_of: Build) -> None:
    prompt = tiny.prompt[: BLOCK + 3]
    engine = engine_of(tiny)
    generated = run(engine, ask("first", prompt, 3 * BLOCK))["first", 0]
    turn = [*prompt, *generated, 5, 6, 7]
    answer = run(engine, ask("next", turn))["next", 0]
    assert engine.stats().cached_tokens == (len(prompt) + len(generated) - 1) // BLOCK * BLOCK
    assert answer == tiny.reference_tokens(turn, 12)


@pytest.mark.sample(1)
def test_a_prefix_without_a_cached_state_is_computed_again(tiny: Subject, engine_of: Build) -> None:
    """A step of three blocks caches one state, at its end."""
    engine = engine_of(tiny)
    run(engine, ask("first", tiny.prompt))
    shorter = [*tiny.prompt[: 2 * BLOCK], 5, 6, 7]
    generated = run(engine, ask("shorter", shorter))["shorter", 0]
    assert engine.stats().cached_tokens == 0
    assert generated == tiny.reference_tokens(shorter, 12)


@pytest.mark.sample(1)
def test_every_chunk_of_a_long_prompt_caches_a_state(tiny: Subject, engine_of: Build) -> None:
    engine = engine_of(tiny, rows=BLOCK)
    run(engine, ask("first", tiny.prompt))
    shorter = [*tiny.prompt[:BLOCK], 5, 6, 7]
    generated = run(engine, ask("shorter", shorter))["shorter", 0]
    assert engine.stats().cached_tokens == BLOCK
    assert generated == tiny.reference_tokens(shorter, 12)


@pytest.mark.sample(1)
@pytest.mark.parametrize("rows", [5, BLOCK, 23])
def test_chunks_with_decodes_match_the_reference(
    tiny: Subject, engine_of: Build, rows: int
) -> None:
    prompts = [tiny.prompt[i : i + 41] for i in range(3)]
    alone = [tiny.reference_tokens(prompt, 8) for prompt in prompts]
    assert greedy(engine_of(tiny, rows=rows), prompts, 8) == alone


@pytest.mark.sample(1)
def test_preemption_does_not_change_outputs(tiny: Subject, engine_of: Build) -> None:
    prompts = [tiny.prompt[i : i + 30] for i in range(6)]
    wanted = greedy(engine_of(tiny), prompts, 40)
    crowded = engine_of(tiny, blocks=8)
    assert greedy(crowded, prompts, 40) == wanted
    assert crowded.stats().preemptions > 0
    assert crowded.stats().blocks_used == 0


@pytest.mark.sample(1)
def test_choices_share_one_prompt(tiny: Subject, engine_of: Build) -> None:
    prompt = tiny.prompt[: 2 * BLOCK + 5]
    engine = engine_of(tiny)
    generated = run(engine, ask("a", prompt, n=2, temperature=1.0, seed=7))
    alone = engine_of(tiny)
    for index in (0, 1):
        other = run(alone, ask(str(index), prompt, temperature=1.0, seed=7 + index))
        assert generated["a", index] == other[str(index), 0]
    assert generated["a", 0] != generated["a", 1]


@pytest.mark.sample(1)
def test_abort_releases_every_block_at_once(tiny: Subject, engine_of: Build) -> None:
    engine = engine_of(tiny, rows=20)
    for id in "abc":
        engine.submit(ask(id, tiny.prompt))
    for passes in range(5):
        engine.step()
        assert engine.stats().blocks_used > 0, f"{passes = }"
    for id in "abc":
        engine.abort(id)
    assert engine.stats().blocks_used == 0
    assert run(engine, ask("d", tiny.prompt))["d", 0] == tiny.reference_tokens(tiny.prompt, 12)
