"""Draft models: the tokens are the same with one, and come in fewer steps if it is right."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tiny.drafts import LENGTH, Free, Tokens, requests_of, run

from ostro.core.engine.engine import Engine
from ostro.core.engine.proposers.draft_model import DraftModelProposer
from ostro.core.engine.speculation import DraftRequest
from ostro.core.engine.startup.warm_up import make_ready
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.parity import Subject, subject

DRAFTS = {"llama": "gemma3", "gemma3": "llama", "lfm2": "mamba2"}
"""The architecture of a draft model of other weights, by that of its target."""


@pytest.fixture(scope="module", params=DRAFTS)
def tiny(request: pytest.FixtureRequest, plugins: PluginManager) -> Iterator[Subject]:
    with subject(plugins, request.param) as made:
        yield made


@pytest.fixture(scope="module")
def other(tiny: Subject, plugins: PluginManager) -> Iterator[Subject]:
    """A model of the same vocabulary with other weights, of another architecture."""
    name = DRAFTS[tiny.record.name]
    size = int(tiny.config.vocab_size)
    config = {**(plugins.get("architectures", name).conformance.tiny or {}), "vocab_size": size}
    with subject(plugins, name, config=config) as made:
        yield made


def with_draft(target: Subject, draft: Subject, **options: Any) -> Engine:
    loaded = target.load()
    loaded.draft = draft.load()
    fields = {"rows": 40, "blocks": 64, "max_seqs": 4, **options}
    engine = target.engine(loaded, speculate="draft", **fields)
    make_ready(engine, loaded)
    assert engine.scheduler.speculation is not None
    engine.scheduler.speculation.costs = Free()
    return engine


def proposer_of(engine: Engine) -> DraftModelProposer:
    assert engine.scheduler.speculation is not None
    proposer = engine.scheduler.speculation.proposer
    assert isinstance(proposer, DraftModelProposer) and proposer.runner is engine.draft_runner
    return proposer


@pytest.mark.sample(2)
@pytest.mark.parametrize("replay", [False, True])
def test_a_draft_of_the_same_weights_is_always_right(tiny: Subject, replay: bool) -> None:
    requests = requests_of(tiny)[:1]
    wanted = run(tiny.engine(rows=40, blocks=64), requests)
    engine = with_draft(tiny, tiny, replay=replay)
    speculation, draft = engine.scheduler.speculation, proposer_of(engine)
    assert speculation is not None
    assert bool(draft.runner.prompt_buckets.plain) == replay
    before = engine.stats().steps
    assert run(engine, requests) == wanted
    assert speculation.accepted == speculation.drafted > LENGTH / 2
    assert engine.stats().steps - before <= 8  # 1 + 4, 8, 8, ... drafts
    assert blocks_used(engine) == 0


@pytest.mark.sample(2)
@pytest.mark.parametrize("replay", [False, True])
def test_answers_are_the_same_with_a_draft_of_other_weights(
    tiny: Subject, other: Subject, replay: bool
) -> None:
    requests = requests_of(tiny)
    wanted = run(tiny.engine(rows=40, blocks=64, max_seqs=4), requests)
    engine = with_draft(tiny, other, replay=replay)
    for _ in range(2):  # with an empty and with a full prefix cache
        assert run(engine, requests) == wanted
    assert engine.scheduler.speculation is not None and engine.scheduler.speculation.drafted
    assert blocks_used(engine) == 0


Proposals = list[tuple[list[int], list[int]]]


def recorded(draft: DraftModelProposer, monkeypatch: pytest.MonkeyPatch) -> Proposals:
    """The tokens and the drafts of each request that gets some."""
    proposals, propose = Proposals(), draft.propose

    def record(requests: Sequence[DraftRequest]) -> list[list[int]]:
        drafts = propose(requests)
        proposals.extend((list(r.tokens), d) for r, d in zip(requests, drafts, strict=True) if d)
        return drafts

    monkeypatch.setattr(draft, "propose", record)
    return proposals


@pytest.mark.sample(2)
@pytest.mark.parametrize("blocks", [64, 12])
def test_drafts_are_the_greedy_tokens_of_the_draft_model(
    tiny: Subject, other: Subject, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was accepted, rejected or preempted before: its cache has the target's tokens."""
    source = tiny if blocks == 64 else other  # of the same weights, most drafts are right
    engine = with_draft(tiny, source, rows=16, blocks=blocks)
    draft = proposer_of(engine)
    proposals = recorded(draft, monkeypatch)
    rules = {"temperature": 0.4, "top_k": 2}
    for each in requests_of(tiny):
        engine.submit(replace(each, sampling=replace(each.sampling, **rules)))
    engine.drain()
    lengths = {len(drafts) for _, drafts in proposals}
    assert len(proposals) > 20 and max(lengths) > 2
    alone = source.engine(rows=40, blocks=64, max_seqs=4)
    asked = [
        TokenRequest(
            id=str(i),
            tokens=tokens,
            sampling=Sampling(temperature=0, max_tokens=len(drafts), ignore_eos=True),
        )
        for i, (tokens, drafts) in enumerate(proposals)
    ]
    answers = run(alone, asked)
    assert [answers[str(i), 0] for i in range(len(asked))] == [drafts for _, drafts in proposals]


def test_the_same_tokens_again_get_the_same_drafts(tiny: Subject) -> None:
    """Also if some of them were accepted before."""
    engine = with_draft(tiny, tiny)
    draft = proposer_of(engine)
    tokens = tiny.prompt[:9]
    [first] = draft.propose([DraftRequest(0, tokens, 4, True)])
    assert len(first) == 4
    for _ in range(2):
        assert draft.propose([DraftRequest(0, tokens, 4, False)]) == [first]
    for _ in range(2):
        assert draft.propose([DraftRequest(0, [*tokens, *first[:3]], 1, False)]) == [first[3:]]


@pytest.mark.parametrize("right", [0, 1, 3])
def test_other_tokens_take_the_place_of_drafts(tiny: Subject, right: int) -> None:
    """Of a sequence that got some tokens without drafts in between."""
    engine, fresh = with_draft(tiny, tiny), with_draft(tiny, tiny)
    draft, other = proposer_of(engine), proposer_of(fresh)
    tokens = tiny.prompt[:9]
    [first] = draft.propose([DraftRequest(0, tokens, 4, True)])
    tokens += [*first[:right], *((token + 1) % 100 for token in first[right:]), 5]
    assert draft.propose([DraftRequest(0, tokens, 4, False)]) == other.propose(
        [DraftRequest(0, tokens, 4, True)]
    )
    assert blocks_used(engine) == blocks_used(fresh), "blocks of drafts are released"
    draft.release(0)
    assert blocks_used(engine) == 0


def test_sequences_share_the_rows_of_a_step(tiny: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that finds no row left gets fewer drafts."""
    draft = proposer_of(with_draft(tiny, tiny))
    rows, run = list[int](), draft.run
    draft.max_rows = 3
    for row in range(3):  # reads the prompts, one per proposal
        draft.propose([DraftRequest(row, tiny.prompt[:3], 1, True)])
    monkeypatch.setattr(
        draft, "run", lambda plan, *rest: rows.append(plan.rows) or run(plan, *rest)
    )
    draft.max_rows = 2
    requests = [DraftRequest(row, tiny.prompt[:4], 4, False) for row in range(3)]
    assert sorted(map(len, draft.propose(requests))) == [0, 4, 4]
    assert rows == [2, 2, 2, 2]


def random_requests(rng: random.Random) -> list[TokenRequest]:
    """Greedy and sampled ones, of different lengths, some of two choices."""
    return [
        TokenRequest(
            id=str(i),
            tokens=[rng.randrange(100) for _ in range(rng.randint(1, 60))],
            sampling=Sampling(
                temperature=rng.choice([0, 0.7]),
                seed=i,
                max_tokens=rng.randint(1, 50),
                ignore_eos=True,
                n=rng.choice([1, 1, 2]),
            ),
        )
        for i in range(8)
    ]


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(3))
def test_random_requests_with_aborts_and_preemptions(tiny: Subject, seed: int) -> None:
    rng = random.Random(seed)
    requests = random_requests(rng)
    wanted = run(tiny.engine(rows=40, blocks=200, max_seqs=6), requests)
    engine = with_draft(
        tiny, tiny, rows=16, blocks=rng.choice([10, 14]), max_seqs=6, replay=seed == 1
    )
    found = Tokens()
    aborted = set[str]()
    while requests or engine.busy:
        if requests and rng.random() < 0.5:
            engine.submit(requests.pop(0))
        if engine.live and rng.random() < 0.03:
            aborted.add(id := rng.choice(list(engine.live)))
            engine.abort(id)
        for output in engine.step():
            assert output.error is None
            found.setdefault((output.id, output.index), []).extend(output.tokens)
    for key, tokens in wanted.items():
        answer = found.get(key, [])
        assert answer == (tokens[: len(answer)] if key[0] in aborted else tokens)
    assert engine.stats().accepted_tokens and blocks_used(engine) == 0


def blocks_used(engine: Engine) -> int:
    """The blocks in use of the model and of its draft model."""
    draft = proposer_of(engine)
    groups = (*engine.blocks.all, *draft.runner.blocks.all)
    return sum(group.pool.used for group in groups)


@pytest.mark.sample(1)
def test_answers_are_the_same_under_preemption(tiny: Subject) -> None:
    requests = requests_of(tiny)
    wanted = run(tiny.engine(rows=40, blocks=64, max_seqs=4), requests)
    engine = with_draft(tiny, tiny, rows=16, blocks=9)
    assert run(engine, requests) == wanted
    assert engine.stats().preemptions or tiny.name == "gemma3"  # whose window needs few blocks
    assert engine.stats().accepted_tokens
    assert blocks_used(engine) == 0


def test_a_long_prompt_is_read_in_parts(tiny: Subject) -> None:
    """A prompt beyond one step of the draft model: its drafts begin later, another's do not."""
    rules = Sampling(temperature=0, max_tokens=LENGTH, ignore_eos=True)
    prompts = [(tiny.prompt * 4)[:90], tiny.prompt[:5]]
    requests = [
        TokenRequest(id=str(i), tokens=tokens, sampling=rules) for i, tokens in enumerate(prompts)
    ]
    wanted = run(tiny.engine(rows=40, blocks=64, max_seqs=4), requests)
    engine = with_draft(tiny, tiny, rows=16)
    assert run(engine, requests) == wanted
    assert engine.stats().accepted_tokens > LENGTH


def test_a_draft_model_without_room_drafts_nothing(tiny: Subject) -> None:
    requests = requests_of(tiny)
    wanted = run(tiny.engine(rows=40, blocks=64, max_seqs=4), requests)
    engine = with_draft(tiny, tiny)
    draft = proposer_of(engine)
    held = [(g.pool, g.pool.allocate()) for g in draft.runner.blocks.all for _ in range(63)]
    assert run(engine, requests) == wanted
    for pool, block in held:
        pool.release(block)
    assert blocks_used(engine) == 0


def test_a_sequence_without_room_leaves_it_to_others(tiny: Subject) -> None:
    """With room for one sequence and a half, one of two has drafts until its end."""
    rules = Sampling(temperature=0, max_tokens=100, ignore_eos=True)
    engine = with_draft(tiny, tiny)
    draft = proposer_of(engine)
    for group in draft.runner.blocks.groups:
        for _ in range(64 - 9):
            group.pool.allocate()
    before = engine.stats().steps
    for i in range(2):
        tokens = tiny.prompt[i : i + 10]
        engine.submit(TokenRequest(id=str(i), tokens=tokens, sampling=rules))
    engine.drain()
    assert engine.stats().steps - before < 30


def test_sequences_beyond_the_context_of_the_draft_model_get_no_drafts(
    tiny: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = requests_of(tiny)[:1]
    wanted = run(tiny.engine(rows=40, blocks=64, max_seqs=4), requests)
    engine = with_draft(tiny, tiny)
    draft = proposer_of(engine)
    draft.runner.context = 30
    proposals = recorded(draft, monkeypatch)
    assert run(engine, requests) == wanted
    assert proposals and max(len(tokens) + len(drafts) for tokens, drafts in proposals) <= 30


def test_a_reset_releases_the_cache_of_the_draft_model(tiny: Subject) -> None:
    engine = with_draft(tiny, tiny)
    for request in requests_of(tiny):
        engine.submit(request)
    for _ in range(4):
        engine.step()
    assert blocks_used(engine)
    engine.scheduler.reset()
    assert blocks_used(engine) == 0


def test_a_token_that_only_the_model_knows_turns_drafts_off(tiny: Subject, other: Subject) -> None:
    """The draft model's table of embeddings has no row for it."""
    requests = requests_of(tiny)
    wanted = run(tiny.engine(rows=40, blocks=64, max_seqs=4), requests)
    engine = with_draft(tiny, other)
    draft = proposer_of(engine)
    draft.runner.sampler.vocab = max(requests[0].tokens)
    assert run(engine, requests[:1]) == {key: wanted[key] for key in wanted if key[0] == "greedy"}
    assert not engine.stats().drafted_tokens


def test_a_draft_model_that_fails_is_turned_off(
    tiny: Subject, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    requests = requests_of(tiny)
    wanted = run(tiny.engine(rows=40, blocks=64, max_seqs=4), requests)
    engine = with_draft(tiny, tiny)
    draft = proposer_of(engine)

    def fail(*args: object) -> None:
        raise RuntimeError("a kernel of the draft model failed")

    monkeypatch.setattr(draft.runner, "forward", fail)
    assert run(engine, requests) == wanted
    assert not engine.stats().drafted_tokens
    assert caplog.text.count("speculative decoding is off") == 1


def test_the_captured_steps_of_a_draft_model_are_released(llama: Subject) -> None:
    """Buckets refer to their runner, and would keep its cache until a garbage collection."""
    engine = with_draft(llama, llama, replay=True)
    buckets = proposer_of(engine).runner.decode_buckets
    assert buckets.plain
    engine.close()
    assert not buckets.plain
