"""The model runner with a model of sums: steps, logits and drawn tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from tiny.loop import BLOCK, Room, image, lora
from tiny.sums import VOCAB, SumModel, engine_of, next_tokens, runner_of, sum_pages

from ostro.core.adapters.adapter import EMPTY, Mixture
from ostro.core.engine.engine import Engine
from ostro.core.errors import RequestError
from ostro.core.messages.arrays import Array
from ostro.core.messages.prompt import Item
from ostro.core.messages.requests import Sampling, TokenRequest

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7], list(range(20, 43)), [11] * 9]
LOOPS = pytest.mark.parametrize(
    "loop",
    [{}, {"captured": 4, "captured_prompts": 16, "replay": True}],
    ids=["eager", "buckets"],
)


def engine(loop: dict[str, Any], blocks: int = 64, **options: Any) -> Engine:
    """An engine in one of both loops; with buckets it reads a step late, as on CUDA."""
    model, rows = SumModel(), options.pop("rows", 16)
    runner = runner_of(model, sum_pages(blocks), **loop, **options)
    runner.capture()
    model.steps.clear()
    return engine_of(runner, rows=rows, lag=int(bool(loop)))


def submit(
    engine: Engine,
    id: str,
    tokens: Sequence[int],
    count: int = 8,
    *,
    mixture: Mixture = EMPTY,
    **more: Any,
) -> None:
    rules = Sampling(temperature=0, max_tokens=count)
    engine.submit(TokenRequest(id=id, tokens=list(tokens), sampling=rules, **more), mixture)


def drain(engine: Engine) -> dict[str, list[int]]:
    """The tokens of each request."""
    generated: dict[str, list[int]] = {}
    for output in engine.drain():
        generated.setdefault(output.id, []).extend(output.tokens)
    return generated


def steps(engine: Engine) -> list[Any]:
    model: Any = engine.runner.model
    return model.steps


@LOOPS
@pytest.mark.parametrize("rows", [1, 5, 16])
def test_prompts_and_decodes_in_one_batch_continue_as_alone(
    loop: dict[str, Any], rows: int
) -> None:
    made = engine(loop, rows=rows)
    for i, prompt in enumerate(PROMPTS):
        submit(made, str(i), prompt, 12)
    assert drain(made) == {str(i): next_tokens(prompt, 12) for i, prompt in enumerate(PROMPTS)}


@LOOPS
def test_preempted_requests_continue_where_they_stopped(loop: dict[str, Any]) -> None:
    made = engine(loop, blocks=14)
    for i, prompt in enumerate(PROMPTS):
        submit(made, str(i), prompt, 20)
    assert drain(made) == {str(i): next_tokens(prompt, 20) for i, prompt in enumerate(PROMPTS)}
    assert made.stats().preemptions > 0 and made.stats().blocks_used == 0


@LOOPS
def test_a_cached_prefix_is_read_from_its_slots(loop: dict[str, Any]) -> None:
    made = engine(loop)
    submit(made, "first", PROMPTS[2])
    drain(made)
    submit(made, "second", [*PROMPTS[2][:14], 90, 91])
    assert drain(made)["second"] == next_tokens([*PROMPTS[2][:14], 90, 91], 8)
    assert made.stats().cached_tokens == 12


@LOOPS
def test_adapters_apply_to_the_rows_of_their_request(loop: dict[str, Any]) -> None:
    made = engine(loop, room=Room(2))
    mixtures = {"base": (EMPTY, 0), "x": (lora("x"), 1), "y": (lora("y"), 2)}
    for name, (mixture, _) in mixtures.items():
        submit(made, name, PROMPTS[0], mixture=mixture)
    generated = drain(made)
    assert generated == {
        name: next_tokens(PROMPTS[0], 8, row=row) for name, (_, row) in mixtures.items()
    }
    assert generated["base"] != generated["x"] != generated["y"]


def test_a_step_without_adapters_has_no_mixture() -> None:
    made = engine({}, room=Room(2))
    submit(made, "base", PROMPTS[0], 1)
    drain(made)
    assert steps(made)[0].mixture is None
    submit(made, "x", PROMPTS[1], 1, mixture=lora("x"))
    submit(made, "base", PROMPTS[0], 1, cache=False)
    drain(made)
    assert steps(made)[1].mixture.tolist() == [1] * 2 + [0] * 11


def test_logits_are_computed_for_drawing_rows_alone() -> None:
    made = engine({}, rows=16)
    submit(made, "short", PROMPTS[1])
    made.step()
    submit(made, "long", PROMPTS[2])
    submit(made, "other", PROMPTS[1])
    made.step()
    first, second = steps(made)
    assert first.logits_indices.tolist() == [1]
    assert len(second.tokens) == 16 and second.logits_indices.tolist() == [0], "the prompt is cut"
    made.step()
    assert steps(made)[2].logits_indices.tolist() == [0, 8, 10]
    made.step()
    assert steps(made)[3].logits_indices is None, "all rows draw"


def test_a_step_without_drawing_rows_returns_no_tokens() -> None:
    made = engine({}, rows=8)
    submit(made, "long", PROMPTS[2])
    launched = made.runner.forward(made.scheduler.plan())
    made.runner.sample(launched)
    assert launched.drawn is None and not launched.prompt_logprobs
    assert steps(made)[0].logits_indices.tolist() == []


def test_steps_give_tokens_positions_and_bounds_of_each_chunk() -> None:
    made = engine({}, rows=16)
    submit(made, "decode", PROMPTS[1])
    made.step()
    submit(made, "prompt", PROMPTS[0])
    made.step()
    step = steps(made)[1]
    token = next_tokens(PROMPTS[1], 1)[0]
    assert step.tokens.tolist() == [token, *PROMPTS[0]] and step.bounds == [0, 1, 12]
    assert step.positions.tolist() == [[2, *range(11)]] * 2


def test_given_positions_continue_after_the_prompt() -> None:
    """Two axes; the largest position of the prompt is 30."""
    made = engine({})
    axes = np.array([[0, 1, 7], [0, 30, 2]], np.int32)
    submit(made, "x", [5, 6, 7], 3, positions=Array.of(axes))
    drain(made)
    positions = [step.positions.tolist() for step in steps(made)]
    assert positions == [axes.tolist(), [[31], [31]], [[32], [32]]]


# Prompt log probabilities


@LOOPS
def test_prompt_logprobs_are_those_of_each_following_token(loop: dict[str, Any]) -> None:
    """For one request among others, over several chunks."""
    made = engine(loop, rows=5)
    submit(made, "other", PROMPTS[0])
    rules = Sampling(temperature=0, max_tokens=2, prompt_logprobs=1)
    made.submit(TokenRequest(id="x", tokens=PROMPTS[2], sampling=rules))
    outputs = [output for output in made.drain() if output.id == "x"]
    logprobs = outputs[0].prompt_logprobs
    assert logprobs is not None and logprobs[0] is None and len(logprobs) == len(PROMPTS[2])
    for i, entry in enumerate(logprobs[1:], 1):
        [best] = next_tokens(PROMPTS[2][:i], 1)
        assert entry is not None and entry.token == PROMPTS[2][i] and entry.top[0][0] == best
        assert (entry.logprob == entry.top[0][1]) == (best == PROMPTS[2][i])
    assert [token for output in outputs for token in output.tokens] == next_tokens(PROMPTS[2], 2)


# Media


def picture(key: str, first: int, *values: float, **more: Any) -> Item:
    """An inline medium whose features are these numbers."""
    arrays = {"values": Array.of(np.array(values, np.float32))}
    return replace(image(key, first, len(values), **more), arrays=arrays)


@LOOPS
@pytest.mark.parametrize("rows", [2, 16])
def test_features_are_added_to_the_rows_of_their_medium(loop: dict[str, Any], rows: int) -> None:
    """In chunks of any size, and from the store the second time."""
    made = engine(loop, rows=rows)
    items = [picture("a", 2, 10, 20, 30), picture("b", 7, 5)]
    wanted = next_tokens(PROMPTS[0], 8, features={2: 10, 3: 20, 4: 30, 7: 5})
    for id in ("first", "second"):
        submit(made, id, PROMPTS[0], items=items, cache=False)
        assert drain(made)[id] == wanted
    model: Any = made.runner.model
    assert model.encoded == [10, 5]


def test_features_are_added_to_the_chunk_of_their_request() -> None:
    made = engine({}, rows=64)
    for i, prompt in enumerate(PROMPTS):
        submit(made, str(i), prompt, items=[picture("a", 1, 11)] if i % 2 else [])
    wanted = [next_tokens(p, 8, features={1: 11} if i % 2 else {}) for i, p in enumerate(PROMPTS)]
    assert drain(made) == {str(i): tokens for i, tokens in enumerate(wanted)}


@LOOPS
def test_a_prompt_may_end_within_a_medium(loop: dict[str, Any]) -> None:
    """All rows but the last come from the prefix cache, and that one draws."""
    made, prompt = engine(loop), PROMPTS[2][: 3 * BLOCK + 1]
    items = [picture("a", 10, 10, 20, 30)]
    for id in ("first", "second"):
        submit(made, id, prompt, items=items)
        assert drain(made)[id] == next_tokens(prompt, 8, features={10: 10, 11: 20, 12: 30})
    assert made.stats().cached_tokens == 3 * BLOCK


def test_features_beyond_the_limit_are_evicted_after_the_step() -> None:
    made = engine({}, features=0)
    for id in ("first", "second"):
        submit(made, id, PROMPTS[0], items=[picture("a", 2, 10)], cache=False)
        assert drain(made)[id] == next_tokens(PROMPTS[0], 8, features={2: 10})
    model: Any = made.runner.model
    assert model.encoded == [10, 10] and not made.runner.features.entries


def test_media_are_encoded_under_the_adapters_of_their_request() -> None:
    made = engine({}, room=Room(2))
    for name, mixture, row in (("base", EMPTY, 0), ("x", lora("x", encodes=True), 1)):
        submit(made, name, PROMPTS[0], items=[picture("a", 2, 10)], mixture=mixture)
        wanted = next_tokens(PROMPTS[0], 8, row=row, features={2: 10 + 1000 * row})
        assert drain(made)[name] == wanted
    model: Any = made.runner.model
    assert model.encoded == [10, 1010]


# Calls without the scheduler


@pytest.mark.parametrize("rows", [1, 4, 512])
def test_logits_of_a_prompt_are_those_of_every_position(rows: int) -> None:
    made = engine({})
    logits = made.runner.logits(PROMPTS[0], rows, items=[picture("a", 2, 10)])
    best = [int(row.argmax()) for row in logits]
    features = {2: 10}
    assert best == [next_tokens(PROMPTS[0][: i + 1], 1, features=features)[0] for i in range(11)]
    assert logits.shape == (11, VOCAB) and logits.dtype == torch.float32
    assert made.stats().blocks_used == 0


def test_logits_do_not_cut_an_atomic_span() -> None:
    made = engine({})
    made.runner.logits(PROMPTS[0], 4, items=[picture("a", 2, 1, 2, 3, 4, 5, atomic=True)])
    assert [len(step.tokens) for step in steps(made)] == [2, 5, 4]


def test_logits_of_a_prompt_beyond_the_cache_are_refused_and_release_it() -> None:
    made = engine({}, blocks=2)
    with pytest.raises(RequestError, match="no room in the cache for 11 tokens"):
        made.runner.logits(PROMPTS[0], 4)
    with pytest.raises(RequestError, match="no room in the cache for this batch"):
        made.runner.hidden(PROMPTS[:2])
    assert made.stats().blocks_used == 0
    assert made.runner.logits(PROMPTS[0][: 2 * BLOCK]).shape == (8, VOCAB)


def test_hidden_states_of_several_inputs_are_those_of_each_alone() -> None:
    made = engine({})
    together, step = made.runner.hidden(PROMPTS)
    alone = torch.cat([made.runner.hidden([prompt])[0] for prompt in PROMPTS])
    assert torch.equal(together, alone) and step.bounds == [0, 11, 13, 36, 45]
    assert step.logits_indices is None and made.stats().blocks_used == 0
