"""Multi-token heads: their drafts are those of a reference, and answers are the same with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from tiny.drafts import LENGTH, Oracle, requests_of, run, run_with_adapter, speculation_of, whole
from tiny.heads import (
    HEADS,
    ReferenceHead,
    deviation_of,
    record_proposals,
    with_head,
)

from ostro.core.engine.engine import Engine
from ostro.core.engine.processors import Processors
from ostro.core.engine.proposers.multi_token import HELD, HeadSequence, MultiTokenProposer
from ostro.core.engine.speculation import Speculation
from ostro.core.engine.standalone import standalone_sequence
from ostro.core.engine.startup.warm_up import make_ready
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import LogitsProcessor
from ostro.plugins.conformance.parity import BAR, Subject, greedy

Made = tuple[Subject, ReferenceHead]
RECORDS = [
    LogitsProcessor(name=name, processor=f"tiny.processors:{kind}", mask=True)
    for name, kind in (("forcing", "Forcing"), ("silent", "MaskNoRepeat"))
]
COLD = {"temperature": 0.4, "top_k": 2, "seed": 11}


@pytest.fixture(scope="module", params=HEADS)
def made(request: pytest.FixtureRequest, plugins: PluginManager) -> Iterator[Made]:
    with with_head(plugins, request.param) as found:
        yield found


@pytest.fixture(scope="module", params=["qwen3_5", "deepseek_v3"])
def pages_or_states(request: pytest.FixtureRequest, plugins: PluginManager) -> Iterator[Made]:
    """A hybrid model with recurrent states, and one with latent attention."""
    with with_head(plugins, request.param) as found:
        yield found


def with_heads(tiny: Subject, **options: Any) -> Engine:
    loaded = tiny.load(speculate="heads")
    fields = {"rows": 40, "blocks": 64, "max_seqs": 4, **options}
    engine = tiny.engine(loaded, speculate="heads", **fields)
    make_ready(engine, loaded)
    speculation_of(engine)
    return engine


def cold(tiny: Subject) -> list[TokenRequest]:
    return [replace(r, sampling=replace(r.sampling, **COLD)) for r in requests_of(tiny)]


@pytest.mark.sample(4)
@pytest.mark.parametrize("wrong", [0, 5])
def test_drafts_are_those_of_the_reference(made: Made, wrong: int) -> None:
    """In chunks of prompts, after drafts that were accepted or not, with an empty and a full prefix
    cache.
    """
    tiny, head = made
    requests = cold(tiny)
    wanted = run(tiny.engine(rows=16, blocks=64, max_seqs=4), requests)
    answers = whole(requests, wanted)
    engine = with_heads(tiny, rows=16)
    proposals = record_proposals(engine, Oracle(answers, wrong) if wrong else None)
    assert run(engine, requests) == wanted
    rules = Sampling(temperature=0, max_tokens=8, ignore_eos=True)
    turns = [TokenRequest(id=str(i), tokens=t, sampling=rules) for i, t in enumerate(answers)]
    found = run(engine, turns)
    assert engine.stats().cached_tokens > 0
    assert found == run(tiny.engine(rows=16, blocks=64, max_seqs=4), turns)
    # The head's own drafts are random, as its weights are: any number may be accepted.
    assert not wrong or speculation_of(engine).accepted > 20
    assert len(proposals) > 20 and max(len(drafts) for _, drafts, _ in proposals) > 2
    assert all(logits.argmax(-1).tolist() == drafts for _, drafts, logits in proposals)
    assert deviation_of(tiny, head, proposals) <= BAR


@pytest.mark.sample(2)
@pytest.mark.parametrize("blocks", [7, 18])
def test_drafts_are_right_after_preemptions(pages_or_states: Made, blocks: int) -> None:
    tiny, head = pages_or_states
    requests = cold(tiny)
    wanted = run(tiny.engine(rows=40, blocks=64, max_seqs=4), requests)
    engine = with_heads(tiny, rows=16, blocks=blocks)
    proposals = record_proposals(engine, Oracle(whole(requests, wanted), 7))
    assert run(engine, requests) == wanted
    assert engine.stats().preemptions or blocks > 7
    assert engine.stats().blocks_used == 0
    assert deviation_of(tiny, head, proposals) <= BAR


@pytest.mark.sample(4)
@pytest.mark.parametrize("replay", [False, True])
def test_answers_are_the_same_with_heads(made: Made, replay: bool) -> None:
    tiny, _ = made
    requests = requests_of(tiny)
    wanted = run(tiny.engine(rows=40, blocks=64, max_seqs=4), requests)
    engine = with_heads(tiny, replay=replay)
    assert run(engine, requests) == wanted
    speculation = speculation_of(engine)
    assert speculation.drafted > LENGTH and not speculation.failed
    assert engine.stats().blocks_used == 0


def test_requests_without_drafts_are_forgotten(pages_or_states: Made) -> None:
    """Also those that end with their first token, before the head has computed their prompt."""
    tiny, head = pages_or_states
    engine = with_heads(tiny, rows=64)
    proposals = record_proposals(engine)
    rules = Sampling(temperature=0, max_tokens=1, ignore_eos=True)
    for id, speculate in (("a", True), ("b", False)):
        request = TokenRequest(id=id, tokens=tiny.prompt, sampling=rules, speculate=speculate)
        run(engine, [request])
    speculation = speculation_of(engine)
    assert isinstance(speculation.proposer, MultiTokenProposer)
    assert not any(speculation.proposer.sequences) and not proposals
    rules = Sampling(temperature=0, max_tokens=8, ignore_eos=True)
    run(engine, [TokenRequest(id="c", tokens=tiny.prompt, sampling=rules)])
    assert engine.stats().cached_tokens >= 32
    assert proposals and not speculation.failed
    assert deviation_of(tiny, head, proposals) <= BAR


def test_a_prompt_of_more_rows_than_are_held(pages_or_states: Made) -> None:
    tiny, head = pages_or_states
    engine = with_heads(tiny, rows=200)
    proposals = record_proposals(engine)
    rules = Sampling(temperature=0, max_tokens=8, ignore_eos=True)
    tokens = tiny.prompt * 3
    assert len(tokens) > HELD
    run(engine, [TokenRequest(id="a", tokens=tokens, sampling=rules)])
    assert proposals and deviation_of(tiny, head, proposals) <= BAR


def test_aborts_between_a_launch_and_its_read(pages_or_states: Made) -> None:
    tiny, head = pages_or_states
    engine = with_heads(tiny, replay=True)
    proposals = record_proposals(engine)
    for steps in range(2, 12):
        for each in requests_of(tiny):
            engine.submit(replace(each, id=f"{each.id} {steps}"))
        for _ in range(steps):
            engine.step()
        for each in requests_of(tiny):
            engine.abort(f"{each.id} {steps}")
        engine.drain()
    assert proposals and deviation_of(tiny, head, proposals) <= BAR
    assert not speculation_of(engine).failed
    assert engine.stats().blocks_used == 0


def test_a_reset_computes_nothing(pages_or_states: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of its sequences are no longer theirs."""
    tiny, _ = pages_or_states
    engine = with_heads(tiny)
    proposals = record_proposals(engine)
    for each in requests_of(tiny):
        engine.submit(each)
    for _ in range(8):
        engine.step()
    proposer = speculation_of(engine).proposer
    assert isinstance(proposer, MultiTokenProposer)
    assert proposals and any(s is not None and s.held for s in proposer.sequences)
    monkeypatch.setattr(proposer, "compute", None)
    engine.scheduler.reset()
    assert not any(proposer.sequences) and not speculation_of(engine).failed


@pytest.mark.parametrize(("method", "error"), [("forward", RuntimeError), ("logits", SystemExit)])
def test_a_head_that_fails_is_turned_off(
    pages_or_states: Made,
    method: str,
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tiny, _ = pages_or_states
    engine = with_heads(tiny)
    speculation = speculation_of(engine)
    assert isinstance(speculation.proposer, MultiTokenProposer)

    calls = list[int]()

    def fail(*args: Any) -> torch.Tensor:
        calls.append(1)
        raise error("a head that fails")

    monkeypatch.setattr(speculation.proposer.head, method, fail)
    requests = requests_of(tiny)
    wanted = run(tiny.engine(rows=40, blocks=64, max_seqs=4), requests)
    for _ in range(2):
        assert run(engine, requests) == wanted
    assert speculation.failed and not speculation.drafted and len(calls) == 1
    assert caplog.text.count("speculative decoding is off") == 1
    assert engine.stats().blocks_used == 0


def test_a_head_that_runs_out_of_memory_serves_later_sequences(
    pages_or_states: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that run get no more drafts: rows of theirs are missing."""
    tiny, _ = pages_or_states
    engine = with_heads(tiny)
    proposals = record_proposals(engine)
    speculation = speculation_of(engine)
    assert isinstance(speculation.proposer, MultiTokenProposer)

    def fail(*args: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room")

    requests = [r for r in requests_of(tiny) if r.sampling.n == 1]  # both start at once
    wanted = run(tiny.engine(rows=40, blocks=64, max_seqs=4), requests)
    with monkeypatch.context() as patch:
        patch.setattr(speculation.proposer.head, "forward", fail)
        for request in requests:
            engine.submit(request)
        engine.step()
        engine.step()
    assert caplog.text.count("a multi-token head ran out of memory") == 1
    engine.drain()
    assert not proposals and not speculation.failed
    assert run(engine, requests) == wanted
    assert proposals and not speculation.failed


@pytest.mark.parametrize("processor", ["forcing", "silent"])
def test_answers_are_the_same_with_masks_and_forced_tokens(
    pages_or_states: Made, processor: str
) -> None:
    tiny, head = pages_or_states
    place: Any = [1, 2, 3, 4] if processor == "forcing" else 7
    requests = requests_of(tiny, processors={processor: place})
    found = []
    for heads in (False, True):
        engine = with_heads(tiny) if heads else tiny.engine(rows=40, blocks=64, max_seqs=4)
        sampler = engine.runner.sampler
        sampler.processors = Processors(RECORDS, 4, sampler.vocab, sampler.device)
        proposals = record_proposals(engine) if heads else []
        # With log probabilities no token is forced.
        without = [replace(r, sampling=replace(r.sampling, logprobs=None)) for r in requests]
        found.append(run(engine, without))
        assert bool(proposals) == heads
    assert found[0] == found[1]
    assert deviation_of(tiny, head, proposals) <= BAR


def test_heads_follow_a_model_with_adapters(plugins: PluginManager) -> None:
    with with_head(plugins, "glm4_moe") as (tiny, _):
        requests, found = requests_of(tiny), []
        for engine in (tiny.engine(rows=40, blocks=64, max_seqs=4), with_heads(tiny)):
            found.append(run_with_adapter(tiny, engine, requests))
        assert found[0] == found[1] != run(engine, requests)
        assert speculation_of(engine).drafted and not speculation_of(engine).failed


@pytest.mark.parametrize("name", ["qwen3_5_vl", "qwen3_5_moe_vl"])
def test_heads_follow_prompts_with_media(name: str, plugins: PluginManager) -> None:
    with with_head(plugins, name) as (tiny, _):
        media = [example.prompt for example in tiny.examples if example.prompt.items]
        plain, engine = tiny.engine(rows=40, blocks=64, max_seqs=4), with_heads(tiny, rows=40)
        assert media and greedy(engine, media, 20) == greedy(plain, media, 20)
        assert speculation_of(engine).drafted and not speculation_of(engine).failed


def test_answers_without_drafts_are_not_held(pages_or_states: Made) -> None:
    """A sequence that gets drafts late has those of the reference; after more than `HELD` rows
    without any, it gets none.
    """
    tiny, head = pages_or_states
    for late, has_drafts in ((HELD - 8, True), (HELD + 8, False)):
        engine = with_heads(tiny, blocks=64)
        proposals = record_proposals(engine)
        speculation = speculation_of(engine)
        proposer = speculation.proposer
        assert isinstance(proposer, MultiTokenProposer)
        rules = Sampling(temperature=0, max_tokens=HELD + 24, ignore_eos=True)
        engine.submit(TokenRequest(id="a", tokens=tiny.prompt[:9], sampling=rules))
        engine.scheduler.speculation = Quiet(speculation)
        for _ in range(late):
            engine.step()
        engine.scheduler.speculation = speculation
        engine.drain()
        assert bool(proposals) == has_drafts
        if has_drafts:
            assert deviation_of(tiny, head, proposals) <= BAR


class Quiet:
    """A speculation that proposes nothing."""

    def __init__(self, speculation: Speculation) -> None:
        self.speculation = speculation

    def drafts(self, sequences: Sequence[Any], rows: int, budget: int) -> list[list[int]]:
        return [[] for _ in sequences]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.speculation, name)


def test_held_rows_of_rejected_drafts_are_cut() -> None:
    own = HeadSequence(standalone_sequence([]), 5)
    own.hold(5, torch.full((3, 2), 1.0), True)
    own.hold(8, torch.full((4, 2), 2.0), False)
    own.hold(9, torch.full((1, 2), 3.0), False)  # the last three were rejected
    assert torch.cat(own.held)[:, 0].tolist() == [1, 1, 1, 2, 3]
    own.cut(7)
    assert torch.cat(own.held)[:, 0].tolist() == [1, 1]
    own.cut(5)
    assert not own.held


def test_sequences_without_room_get_one_draft(
    pages_or_states: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is computed without a row of the head."""
    tiny, head = pages_or_states
    engine = with_heads(tiny)
    proposals = record_proposals(engine)
    monkeypatch.setattr(engine.blocks, "grow_pages", lambda *args: False)
    requests = requests_of(tiny)
    assert run(engine, requests) == run(tiny.engine(rows=40, blocks=64, max_seqs=4), requests)
    assert {len(drafts) for _, drafts, _ in proposals} == {1}
    assert deviation_of(tiny, head, proposals) <= BAR
