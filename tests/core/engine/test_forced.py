"""Tokens that masks force are appended without a draw: the same tokens in fewer steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from tiny.drafts import LENGTH, masked_requests, run
from tiny.processors import Forcing

from ostro.core.engine.engine import Engine
from ostro.core.engine.processors import Processors
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import LogitsProcessor
from ostro.plugins.conformance.parity import Subject, subject

PLACES = [1, 2, 3, 4]
RECORDS = [
    LogitsProcessor(name=name, processor=f"tiny.processors:{kind}", mask=True)
    for name, kind in (
        ("forcing", "Forcing"),
        ("other", "Forcing"),
        ("drawn", "Drawn"),
        ("silent", "MaskNoRepeat"),
    )
]


@pytest.fixture(scope="module", params=["llama", "gemma3", "deepseek_v2", "qwen3_5", "lfm2"])
def tiny(request: pytest.FixtureRequest, plugins: PluginManager) -> Iterator[Subject]:
    with subject(plugins, request.param) as made:
        yield made


def engine_of(tiny: Subject, *, replay: bool = False, **options: Any) -> Engine:
    engine = tiny.engine(**{"rows": 40, "blocks": 64, "max_seqs": 6, "replay": replay} | options)
    sampler = engine.runner.sampler
    sampler.processors = Processors(RECORDS, 6, sampler.vocab, sampler.device)
    if replay:
        engine.runner.capture()
    return engine


def requests_of(tiny: Subject, name: str, **fields: Any) -> list[TokenRequest]:
    return masked_requests(tiny, {name: PLACES}, **fields)


@pytest.mark.parametrize("replay", [False, True])
def test_the_tokens_are_the_same(tiny: Subject, replay: bool) -> None:
    """Drawn from masks, and appended; the loop with a step in flight appends nothing."""
    wanted = run(engine_of(tiny), requests_of(tiny, "drawn"))
    engine = engine_of(tiny, replay=replay)
    assert run(engine, requests_of(tiny, "forcing")) == wanted
    assert all(len(tokens) == LENGTH for tokens in wanted.values())
    assert engine.stats().blocks_used == 0
    alone = engine_of(tiny, replay=replay)
    run(alone, requests_of(tiny, "forcing")[:1])
    steps = alone.stats().steps
    assert steps < LENGTH / 2 if not replay else steps >= LENGTH


@pytest.mark.parametrize("blocks", [9, 14])
def test_the_tokens_are_the_same_under_preemption(llama: Subject, blocks: int) -> None:
    wanted = run(engine_of(llama), requests_of(llama, "drawn"))
    engine = engine_of(llama, rows=16, blocks=blocks)
    assert run(engine, requests_of(llama, "forcing")) == wanted
    assert engine.stats().preemptions or blocks > 9


@pytest.mark.parametrize("most", range(1, 12))
def test_an_output_ends_within_forced_tokens(llama: Subject, most: int) -> None:
    requests = requests_of(llama, "forcing", max_tokens=most)
    engine = engine_of(llama)
    found = run(engine, requests)
    assert {len(tokens) for tokens in found.values()} == {most}
    assert found == run(engine_of(llama), requests_of(llama, "drawn", max_tokens=most))
    assert engine.stats().blocks_used == 0 and not engine.busy


def test_a_forced_token_may_end_the_output(llama: Subject) -> None:
    end = 5 + 9  # the token that is forced behind nine others
    [request] = requests_of(llama, "forcing", stop_ids=(end,))[:1]
    found = run(engine_of(llama), [request])["greedy", 0]
    assert len(found) <= 9 and end not in found


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": 1},
        {"repetition_penalty": 1.1},
        {"min_tokens": LENGTH - 1, "stop_ids": (3,), "ignore_eos": False},
    ],
)
def test_what_needs_each_row_draws_it(llama: Subject, fields: dict[str, Any]) -> None:
    engine = engine_of(llama)
    [request] = requests_of(llama, "forcing", **fields)[:1]
    found = run(engine, [request])
    assert engine.stats().steps >= LENGTH - 1
    assert found == run(engine_of(llama), requests_of(llama, "drawn", **fields)[:1])


def test_many_sequences_draw_each_token(llama: Subject) -> None:
    engine = engine_of(llama)
    requests = [
        replace(request, id=f"{request.id} {i}")
        for i in range(3)
        for request in requests_of(llama, "forcing")[:1]
    ]
    more = [replace(request, id=f"more {request.id}") for request in requests[:2]]
    assert len({*map(tuple, run(engine, requests).values())}) == 1
    assert engine.stats().steps < LENGTH / 2
    engine = engine_of(llama)
    run(engine, [*requests, *more])
    assert engine.stats().steps >= LENGTH


def test_a_request_turns_it_off(llama: Subject) -> None:
    engine = engine_of(llama)
    [request] = requests_of(llama, "forcing")[:1]
    run(engine, [replace(request, speculate=False)])
    assert engine.stats().steps >= LENGTH


@pytest.mark.parametrize(
    ("second", "appends"),
    [({"other": []}, True), ({"other": PLACES}, False), ({"silent": 3}, False)],
)
def test_two_masks(llama: Subject, second: dict[str, Any], appends: bool) -> None:
    """Tokens are appended if the other mask allows every token."""
    engine = engine_of(llama)
    rules = Sampling(max_tokens=LENGTH, ignore_eos=True, processors={"forcing": PLACES, **second})
    run(engine, [TokenRequest(id="a", tokens=llama.prompt[:9], sampling=rules)])
    assert (engine.stats().steps < LENGTH / 2) == appends


@pytest.mark.parametrize("bad", [RuntimeError("broken"), [10**9], [-1]])
def test_an_error_ends_the_requests_of_the_processor(
    llama: Subject, monkeypatch: pytest.MonkeyPatch, bad: Any
) -> None:
    def forced(self: Any, request: Any) -> Any:
        if isinstance(bad, Exception):
            raise bad
        return bad

    monkeypatch.setattr(Forcing, "forced", forced)
    engine = engine_of(llama)
    requests = requests_of(llama, "forcing")
    for request in requests:
        engine.submit(request)
    errors: dict[str, str] = {}
    tokens: dict[str, int] = {}
    while engine.busy:
        for output in engine.step():
            tokens[output.id] = tokens.get(output.id, 0) + len(output.tokens)
            if output.error is not None:
                errors[output.id] = output.error
    assert errors.keys() == {"greedy", "sampled"} and tokens["plain"] == LENGTH
    assert engine.stats().blocks_used == 0
