"""Speculative decoding: the same tokens with and without drafts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tiny.drafts import LENGTH, Oracle, Tokens, requests_of, run, speculating, whole

from ostro.core.engine.buckets import Bucket, DecodeBucket
from ostro.core.engine.draft_length import MAX_DRAFTS, MAX_ROWS, StepCosts
from ostro.core.engine.processors import Processors
from ostro.core.engine.proposers.build_speculation import complete
from ostro.core.engine.speculation import ComputedRows, DraftRequest, Proposer
from ostro.core.engine.standalone import standalone_sequence
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.ops.attention import AttentionMetadata
from ostro.core.ops.state_layout import SAVED_ROWS
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import LogitsProcessor
from ostro.core.step import Step
from ostro.plugins.conformance.parity import Subject, subject

RECURRENT = ("lfm2", "mamba2", "bamba", pytest.param("qwen3_next", marks=pytest.mark.slow))
"""Short convolutions, states alone, and two hybrid models."""


@pytest.fixture(scope="module", params=["llama", "gemma3", "mixtral", "deepseek_v2", *RECURRENT])
def tiny(request: pytest.FixtureRequest, plugins: PluginManager) -> Iterator[Subject]:
    with subject(plugins, request.param) as made:
        yield made


@pytest.fixture(scope="module", params=["llama", "lfm2"])
def pages_or_states(request: pytest.FixtureRequest, plugins: PluginManager) -> Iterator[Subject]:
    """A model with pages of keys and values, and one that also has recurrent states."""
    with subject(plugins, request.param) as made:
        yield made


@pytest.mark.sample(3)
@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("wrong", [10**9, 5, 2, 1])
def test_answers_are_the_same_with_drafts(tiny: Subject, wrong: int, replay: bool) -> None:
    """All drafts right, some or all of them wrong; both loops."""
    requests = requests_of(tiny)
    wanted = run(tiny.engine(rows=40, blocks=64, max_seqs=4), requests)
    engine = tiny.engine(rows=40, blocks=64, max_seqs=4, replay=replay)
    if replay:
        engine.runner.capture()
    speculation = speculating(engine, Oracle(whole(requests, wanted), wrong))
    before = engine.stats().steps
    assert run(engine, requests) == wanted
    assert speculation.drafted > 0
    if wrong == 1:
        assert speculation.accepted == 0
    if wrong == 10**9:
        # The choices of one prompt begin alike: the first proposal may be that of the other one.
        assert speculation.accepted > 0.9 * speculation.drafted
        assert engine.stats().steps - before < LENGTH / 2
    assert engine.stats().blocks_used == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("blocks", [7, 18])
def test_answers_are_the_same_under_preemption(pages_or_states: Subject, blocks: int) -> None:
    model = pages_or_states
    requests = requests_of(model)
    wanted = run(model.engine(rows=40, blocks=64, max_seqs=4), requests)
    engine = model.engine(rows=16, blocks=blocks, max_seqs=4)
    speculation = speculating(engine, Oracle(whole(requests, wanted), 7))
    assert run(engine, requests) == wanted
    assert speculation.accepted and (engine.stats().preemptions or blocks > 7)
    assert engine.stats().blocks_used == 0


def test_rows_of_a_bucket_are_in_order(
    pages_or_states: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a sequence has several rows, fewer sequences have them; idle ones begin after them."""
    load, rows = Bucket.load, list[int]()

    def check(bucket: Bucket, step: Step, batches: Sequence[AttentionMetadata]) -> None:
        load(bucket, step, batches)
        for batch in bucket.batches:
            starts = batch.starts.tolist()
            assert starts == sorted(starts) and starts[-1] == bucket.size
            assert batch.host is not None and batch.host.starts == starts
        rows.append(len(step.tokens))

    model = pages_or_states
    requests = requests_of(model)
    wanted = run(model.engine(rows=40, blocks=64, max_seqs=4), requests)
    engine = model.engine(rows=40, blocks=64, max_seqs=8, replay=True, speculate="ngram")
    engine.runner.capture()
    speculating(engine, Oracle(whole(requests, wanted)))
    monkeypatch.setattr(DecodeBucket, "load", check)
    assert run(engine, requests) == wanted and max(rows) > 4


@pytest.mark.parametrize("wrong", [10**9, 3])
def test_prefix_hits_of_answers_with_drafts_are_right(pages_or_states: Subject, wrong: int) -> None:
    """Blocks of rejected drafts are not published; those of accepted ones are."""
    model = pages_or_states
    requests = requests_of(model)[:1]
    engine = model.engine(rows=40, blocks=64, max_seqs=4)
    wanted = run(engine, requests)
    speculating(engine, Oracle(whole(requests, wanted), wrong))
    tokens = [*requests[0].tokens, *wanted["greedy", 0]]
    engine.scheduler.reset()
    assert run(engine, requests) == wanted
    block = engine.blocks.block
    for length in range(len(tokens), block, -block):
        more = [TokenRequest(id="more", tokens=tokens[:length], sampling=requests[0].sampling)]
        fresh = model.engine(rows=40, blocks=64, max_seqs=4)
        hits = engine.stats().cached_tokens
        assert run(engine, more) == run(fresh, more)
        assert engine.stats().cached_tokens - hits == (length - 1) // block * block


@pytest.mark.parametrize("end", ["stop", "length"])
def test_tokens_after_the_end_are_dropped(pages_or_states: Subject, end: str) -> None:
    model = pages_or_states
    [request] = requests_of(model)[:1]
    wanted = run(model.engine(), [request])["greedy", 0]
    at = next(i for i in range(11, LENGTH) if wanted[i] not in wanted[:i])
    rules = {"stop_ids": (wanted[at],)} if end == "stop" else {"max_tokens": at}
    [short] = requests_of(model, **rules)[:1]
    engine = model.engine()
    speculating(engine, Oracle([[*request.tokens, *wanted]]))
    assert run(engine, [short])["greedy", 0] == wanted[:at]
    assert engine.stats().blocks_used == 0


def test_masks_see_the_tokens_and_drafts_in_order(llama: Subject) -> None:
    engine, wanted = llama.engine(), Tokens()
    for drafts in (False, True):
        engine = llama.engine()
        sampler = engine.runner.sampler
        record = LogitsProcessor(name="mask", processor="tiny.processors:MaskNoRepeat", mask=True)
        rows = engine.scheduler.max_seqs
        sampler.processors = Processors([record], rows, sampler.vocab, sampler.device)
        requests = requests_of(llama, processors={"mask": 7})
        if drafts:
            speculation = speculating(engine, Oracle(whole(requests, wanted), 4))
            assert run(engine, requests) == wanted
            assert speculation.accepted > LENGTH
        else:
            wanted = run(engine, requests)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "rules", [{"repetition_penalty": 1.1}, {"min_tokens": LENGTH, "ignore_eos": False}]
)
def test_rules_that_read_earlier_tokens_get_no_drafts(
    llama: Subject, rules: dict[str, Any]
) -> None:
    requests = requests_of(llama, **rules)
    wanted = run(llama.engine(), requests)
    engine = llama.engine()
    speculation = speculating(engine, Oracle(whole(requests, wanted)))
    assert run(engine, requests) == wanted and not speculation.drafted


def test_a_request_turns_drafts_off(llama: Subject) -> None:
    [request] = requests_of(llama)[:1]
    plain = TokenRequest(
        id="greedy", tokens=request.tokens, sampling=request.sampling, speculate=False
    )
    engine = llama.engine()
    wanted = run(engine, [plain])
    speculation = speculating(engine, Oracle(whole([request], wanted)))
    assert run(engine, [plain]) == wanted and not speculation.drafted
    assert run(engine, [request]) == wanted and speculation.drafted


def test_the_number_of_drafts_follows_their_acceptance(llama: Subject) -> None:
    [request] = requests_of(llama, max_tokens=100)[:1]
    wanted = run(llama.engine(), [request])
    drafted = dict[int, int]()
    for wrong in (10**9, 1):
        engine = llama.engine()
        speculation = speculating(engine, Oracle(whole([request], wanted), wrong))
        speculation.costs.curve = [0.6 + 0.4 * rows for rows in range(MAX_ROWS + 1)]
        assert run(engine, [request]) == wanted
        drafted[wrong] = speculation.drafted
    assert drafted[10**9] > 60 and drafted[1] < 25, "drafts that are rejected become rare"


def test_a_sequence_begins_with_the_share_of_those_before(llama: Subject) -> None:
    [request] = requests_of(llama, max_tokens=30)[:1]
    wanted = run(llama.engine(), [request])
    engine, drafted = llama.engine(), [0]
    speculation = speculating(engine, Oracle(whole([request], wanted), 1))
    speculation.costs.curve = [0.6 + 0.4 * rows for rows in range(MAX_ROWS + 1)]
    for _ in range(20):
        run(engine, [request])
        drafted.append(speculation.drafted)
    assert drafted[-1] - drafted[-2] < drafted[1] / 2
    before = speculation.typical.rate
    for _ in range(400):
        speculation.release(0)
        sequence = standalone_sequence([])
        sequence.row = 0
        speculation.begin(sequence)
    assert before < 0.6 < 0.8 < speculation.typical.rate, "they are tried again"


def test_a_full_cache_leaves_fewer_drafts(plugins: PluginManager) -> None:
    """Each draft needs a block for the state after it."""
    with subject(plugins, "mamba2") as model:
        [request] = requests_of(model)[:1]
        wanted = run(model.engine(), [request])
        drafted = []
        for blocks in (64, 6, 3):
            engine = model.engine(blocks=blocks)
            speculation = speculating(engine, Oracle(whole([request], wanted)))
            assert run(engine, [request]) == wanted
            drafted.append(speculation.drafted / speculation.proposals)
        assert drafted[0] > 6 > drafted[1] > drafted[2] > 0


def test_all_states_of_a_step_are_saved() -> None:
    """Kernels save those of short sequences only: a step of drafts is one."""
    assert 1 + MAX_DRAFTS <= SAVED_ROWS


def test_many_rows_leave_no_room_for_drafts(llama: Subject) -> None:
    engine = llama.engine(rows=400, blocks=200, max_seqs=36)
    requests = [
        TokenRequest(
            id=str(i),
            tokens=llama.prompt[:4],
            sampling=Sampling(temperature=0, max_tokens=4, ignore_eos=True),
        )
        for i in range(36)
    ]
    wanted = run(llama.engine(), requests[:1])
    speculation = speculating(engine, Oracle(whole(requests[:1], wanted)))
    found = run(engine, requests)
    assert set(map(tuple, found.values())) == {tuple(wanted["0", 0])}
    assert not speculation.drafted


def test_outputs_count_their_drafts(llama: Subject) -> None:
    requests = requests_of(llama)
    wanted = run(llama.engine(rows=40, blocks=64, max_seqs=4), requests)
    engine = llama.engine(rows=40, blocks=64, max_seqs=4)
    speculation = speculating(engine, Oracle(whole(requests, wanted), 5))
    for request in requests:
        engine.submit(request)
    outputs = engine.drain()
    assert sum(output.drafted for output in outputs) == speculation.drafted
    assert sum(output.accepted for output in outputs) == speculation.accepted > 0
    stats = engine.stats()
    assert sum(stats.accepted_at) == stats.accepted_tokens == speculation.accepted
    assert stats.accepted_at[0] <= stats.proposals < stats.drafted_tokens


class Broken(Proposer):
    """A proposer that fails in one of its methods, after some proposals."""

    def __init__(self, fault: str, answers: Sequence[list[int]]) -> None:
        self.fault, self.calls, self.oracle = fault, 0, Oracle(answers)

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        self.calls += 1
        if self.calls < 3 or self.fault == "release":
            return self.oracle.propose(requests)
        if self.fault == "raises":
            raise RuntimeError("out of ideas")
        if self.fault == "too few":
            return []
        if self.fault == "none":
            return None  # type: ignore[return-value]
        if self.fault == "words":
            return [["a"] for _ in requests]  # type: ignore[list-item]
        return [[10**6] for _ in requests]  # no such token

    def release(self, row: int) -> None:
        if self.fault == "release":
            raise RuntimeError("nothing to release")


@pytest.mark.parametrize(
    "fault", ["raises", "too few", "none", "words", "no such token", "release"]
)
def test_a_proposer_that_fails_is_turned_off(
    llama: Subject, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its requests go on, and later ones get no drafts."""
    requests = requests_of(llama)
    wanted = run(llama.engine(rows=40, blocks=64, max_seqs=4), requests)
    engine = llama.engine(rows=40, blocks=64, max_seqs=4)
    proposer = Broken(fault, whole(requests, wanted))
    speculating(engine, proposer)
    assert run(engine, requests) == wanted
    calls = proposer.calls
    assert calls > 2 and engine.stats().accepted_tokens
    assert run(engine, requests) == wanted and proposer.calls == calls
    assert caplog.text.count("speculative decoding is off") == 1
    if fault not in ("raises", "release"):
        assert f"{__name__}.Broken.propose returned" in caplog.text
        assert "lists of token ids within 0.." in caplog.text
    assert engine.stats().blocks_used == 0


class Reader(Oracle):
    """Notes the sampler rows of the sequences that it observes, and of those that are released."""

    reads_hidden = True

    def __init__(self) -> None:
        super().__init__([])
        self.observed, self.released = list[int](), list[int]()

    def observe(self, computed: Sequence[ComputedRows]) -> None:
        self.observed += [rows.sequence.row for rows in computed]

    def release(self, row: int) -> None:
        self.released.append(row)


def test_observed_sequences_are_released_without_a_proposal(llama: Subject) -> None:
    engine, reader = llama.engine(), Reader()
    speculating(engine, reader)
    engine.runner.keeps_hidden = True
    run(engine, requests_of(llama, max_tokens=1)[:1])
    assert reader.observed and not reader.counts
    assert {*reader.released} == {*reader.observed}


class Plain:
    """A proposer of a plugin that does not derive from `Proposer`."""

    def __init__(self, rows: int, vocab: int) -> None:
        super().__init__()
        self.oracle, self.released, self.wrong = Oracle([]), list[int](), False

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        return [] if self.wrong else self.oracle.propose(requests)


class PlainWithRelease(Plain):
    def release(self, row: int) -> None:
        self.released.append(row)


@pytest.mark.parametrize("kind", [Plain, PlainWithRelease])
def test_a_plain_class_may_propose(
    llama: Subject, kind: type[Plain], caplog: pytest.LogCaptureFixture
) -> None:
    requests = requests_of(llama)
    wanted = run(llama.engine(), requests)
    engine = llama.engine()
    proposer: Any = complete(kind)(engine.scheduler.max_seqs, engine.vocab)
    proposer.oracle = Oracle(whole(requests, wanted))
    speculation = speculating(engine, proposer)
    assert run(engine, requests) == wanted
    assert speculation.accepted and not speculation.failed
    assert bool(proposer.released) == (kind is PlainWithRelease)
    proposer.wrong = True
    assert run(engine, requests) == wanted and speculation.failed
    assert f"{__name__}.{kind.__name__}.propose returned" in caplog.text


class Empty:
    """A class without the one method that has no default."""

    def __init__(self, rows: int, vocab: int) -> None:
        self.rows = rows


def test_a_class_without_proposals_is_refused() -> None:
    with pytest.raises(TypeError, match=r"abstract class Empty .*propose"):
        complete(Empty)(1, 8)


def test_proposals_that_cost_nothing_are_made_for_all(llama: Subject) -> None:
    """What to check of them is chosen then: here, where rows are dear, nothing."""
    requests = requests_of(llama)[:1]
    wanted = run(llama.engine(), requests)
    engine, oracle = llama.engine(), Oracle(whole(requests, wanted))
    speculation = speculating(engine, oracle)
    speculation.costs.curve = [10.0 * rows for rows in range(MAX_ROWS + 1)]
    assert run(engine, requests) == wanted
    assert len(oracle.counts) > LENGTH / 2 and not speculation.drafted


def test_the_times_of_steps_and_proposals_are_measured(llama: Subject) -> None:
    requests = requests_of(llama)
    wanted = run(llama.engine(), requests)
    engine = llama.engine()
    speculation = speculating(engine, Oracle(whole(requests, wanted), 2))
    speculation.costs = StepCosts()
    assert run(engine, requests) == wanted
    assert speculation.costs.of(1) > 0 and speculation.costs.draft.seconds
