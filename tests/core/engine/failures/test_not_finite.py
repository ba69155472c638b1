"""Rows of logits, and vectors, that are not finite end their own request with an error."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tiny.failing import MEAN, Build, ask, error_of, idle, processed, run, tokens_of

from ostro.core.engine.engine import Engine
from ostro.core.engine.pooling import PoolingEngine
from ostro.core.messages.requests import PoolingRequest
from ostro.plugins.conformance.parity import Subject, greedy

BAD = 111
"""The token whose embedding is NaN."""
TEXT = "the logits of this request are not finite in float16; load the model with --dtype bfloat16"
RULES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "random": {"temperature": 1.0, "seed": 4},
    "truncated": {"temperature": 1.0, "seed": 4, "top_p": 0.9, "min_p": 0.01},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.5},
    "logprobs": {"logprobs": 3},
    "choices": {"temperature": 1.0, "seed": 4, "n": 2},
    "bias": {"logit_bias": {3: -100.0, 5: 1.0}},
}


def damaged(engine: Engine) -> Engine:
    """The engine with an embedding that is NaN, as if its model computed in float16."""
    embedding: Any = engine.runner.model.get_submodule("model.embed_tokens")
    storage = embedding.storage
    # A CPU whose layout of weights has no rows keeps a second copy of them.
    rows = storage.plain() if storage.table is None else storage.table
    rows[BAD] = math.nan
    engine.runner.dtype = torch.float16
    return engine


@pytest.mark.parametrize("rules", RULES.values(), ids=list(RULES))
def test_a_row_that_is_not_finite_ends_its_request_alone(
    llama: Subject, engine_of: Build, rules: dict[str, Any]
) -> None:
    good, bad = [3, 4, 5, 6], [3, 4, BAD, 6]
    alone = tokens_of(run(engine_of(llama), ask("good", good, 12, **rules))["good"])
    engine = damaged(engine_of(llama))
    found = run(engine, ask("bad", bad, 12, **rules), ask("good", good, 12, **rules))
    assert TEXT in error_of(found["bad"])
    assert found["bad"][-1].kind == "StepFailed" and not tokens_of(found["bad"])
    assert tokens_of(found["good"]) == alone
    idle(engine)


def test_a_later_row_that_is_not_finite_ends_the_request(llama: Subject, engine_of: Build) -> None:
    engine, good = damaged(engine_of(llama, blocks=12)), [3, 4, 5, 6]
    alone = greedy(llama.engine(), [good], 20)[0]
    for _ in range(4):  # the blocks of the failed request are used again
        found = run(engine, ask("bad", [4, 5], 20, logit_bias={BAD: 100.0}), ask("good", good, 20))
        assert tokens_of(found["bad"]) == [BAD] and TEXT in error_of(found["bad"])
        assert tokens_of(found["good"]) == alone
        idle(engine)


def test_a_processor_that_bans_every_token_is_named(faulty: Subject, engine_of: Build) -> None:
    engine = engine_of(faulty)
    error = error_of(run(engine, processed("bad", [3, 4], "ban"))["bad"])
    assert error == (
        "the logits of this request are not finite in float32; the logits processor 'faulty' "
        "(faulty:Faulty) bans every token or returns NaN; if not, the weights are damaged: "
        "download the model's files again"
    )
    idle(engine)


def test_without_a_processor_the_weights_are_named(llama: Subject, engine_of: Build) -> None:
    engine = damaged(engine_of(llama))
    engine.runner.dtype = torch.float32
    error = error_of(run(engine, ask("bad", [3, BAD]))["bad"])
    assert error.endswith("in float32; the weights are damaged: download the model's files again")
    assert "processor" not in error


def test_prompt_logprobs_that_are_not_finite_end_the_request(
    llama: Subject, engine_of: Build
) -> None:
    engine = damaged(engine_of(llama))
    for count in (0, 4):
        request = ask("bad", [3, BAD, 5, 6], count, prompt_logprobs=1)
        assert TEXT in error_of(run(engine, request)["bad"])
        idle(engine)


def test_vectors_that_are_not_finite_end_their_request_alone(llama: Subject) -> None:
    engine = damaged(llama.engine())
    reader = PoolingEngine(engine.runner, MEAN, vocab=engine.vocab, context=200, max_rows=40)
    for id, inputs in {"bad": [[3, 4], [3, BAD]], "good": [[3, 4]]}.items():
        reader.submit(PoolingRequest(id=id, inputs=inputs))
    found = {output.id: output for output in reader.step()}
    assert found["bad"].finish == "error" and found["good"].finish == "stop"
    assert "the output of input[1] is not finite in float16" in (found["bad"].error or "")
    assert not reader.live and not reader.busy
