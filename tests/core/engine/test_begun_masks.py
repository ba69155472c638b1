"""Masks that a processor begins before the logits of a step: where all tokens are known by then."""

from __future__ import annotations

from typing import Any

import pytest
from tiny.drafts import LENGTH, Oracle, masked_requests, run, speculating, whole
from tiny.processors import Begun

from ostro.core.engine.engine import Engine
from ostro.core.engine.processors import Processors
from ostro.core.engine.runner import ModelRunner
from ostro.core.messages.requests import TokenRequest
from ostro.core.records import LogitsProcessor
from ostro.plugins.conformance.parity import Subject

PLACES = [1, 2, 4]
RECORDS = [
    LogitsProcessor(name=kind.lower(), processor=f"tiny.processors:{kind}", mask=True)
    for kind in ("Begun", "Drawn")
]


@pytest.fixture(autouse=True)
def counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Begun, "filled", 0)
    monkeypatch.setattr(Begun, "order", [])


def engine_of(llama: Subject, *, replay: bool = False) -> Engine:
    engine = llama.engine(rows=40, blocks=64, max_seqs=6, replay=replay)
    sampler = engine.runner.sampler
    sampler.processors = Processors(RECORDS, 6, sampler.vocab, sampler.device)
    if replay:
        engine.runner.capture()
    return engine


def requests_of(llama: Subject, name: str) -> list[TokenRequest]:
    return masked_requests(llama, {name: PLACES}, logprobs=1)


@pytest.mark.parametrize("replay", [False, True])
def test_the_tokens_are_the_same(llama: Subject, replay: bool) -> None:
    """With a step in flight only the masks of first tokens can be begun."""
    wanted = run(engine_of(llama), requests_of(llama, "drawn"))
    requests = requests_of(llama, "begun")
    assert run(engine_of(llama, replay=replay), requests) == wanted
    masked = {request.id for request in requests if request.sampling.processors}
    answers = [tokens for (id, _), tokens in wanted.items() if id in masked]
    assert Begun.filled == (len(answers) if replay else sum(map(len, answers)))


def test_the_tokens_are_the_same_with_drafts(llama: Subject) -> None:
    requests = requests_of(llama, "drawn")
    wanted = run(engine_of(llama), requests)
    engine = engine_of(llama)
    speculation = speculating(engine, Oracle(whole(requests, wanted), 4))
    assert run(engine, requests_of(llama, "begun")) == wanted
    assert speculation.accepted and Begun.filled
    assert Begun.order == ["begin", "fill"] * (len(Begun.order) // 2)


def test_masks_are_begun_before_the_logits(llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    compute = ModelRunner.run

    def note(self: ModelRunner, launched: Any) -> Any:
        Begun.order.append("logits")
        return compute(self, launched)

    monkeypatch.setattr(ModelRunner, "run", note)
    run(engine_of(llama), requests_of(llama, "begun")[:1])
    assert Begun.order == ["begin", "logits", "fill"] * LENGTH


def test_an_error_of_begin_ends_the_requests_that_use_it(
    llama: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Begun, requests: Any) -> None:
        raise ValueError("no thread")

    monkeypatch.setattr(Begun, "begin", fail)
    engine = engine_of(llama)
    [request], [_, other] = requests_of(llama, "begun")[:1], requests_of(llama, "drawn")[:2]
    for each in (request, other):
        engine.submit(each)
    outputs = []
    while engine.busy:
        outputs += engine.step()
    ends = {output.id: output for output in outputs if output.finish}
    assert (ends[request.id].finish, ends[other.id].finish) == ("error", "length")
    assert "no thread" in str(ends[request.id].error)
    assert engine.stats().blocks_used == 0
