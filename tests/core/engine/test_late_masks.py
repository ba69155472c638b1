"""Sequences whose masks take longer draw in later steps: the same tokens, and others go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tiny.drafts import LENGTH, Oracle, masked_requests, run, speculating, whole
from tiny.processors import Drawn, Late

from ostro.core.engine.engine import Engine
from ostro.core.engine.processors import Processors
from ostro.core.engine.scheduler import StepPlan
from ostro.core.messages.outputs import TokenOutput
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import LogitsProcessor
from ostro.plugins.conformance.parity import Subject, subject

PLACES = [1, 2, 4]
RECORDS = [
    LogitsProcessor(name=name, processor=f"tiny.processors:{kind}", mask=True)
    for name, kind in (("late", "Late"), ("drawn", "Drawn"), ("never", "Never"))
] + [LogitsProcessor(name="no_repeat", processor="tiny.processors:NoRepeat", order=2000)]


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
    return masked_requests(tiny, {name: PLACES}, logprobs=1, **fields)


@pytest.mark.parametrize("replay", [False, True])
def test_the_tokens_are_the_same(tiny: Subject, replay: bool) -> None:
    """Beside others and alone, in both loops."""
    wanted = run(engine_of(tiny), requests_of(tiny, "drawn"))
    engine, Late.waited = engine_of(tiny, replay=replay), 0
    assert run(engine, requests_of(tiny, "late")) == wanted
    assert Late.waited > LENGTH
    assert engine.stats().blocks_used == 0 and not engine.runner.late
    alone = engine_of(tiny, replay=replay)
    assert run(alone, requests_of(tiny, "late")[:1])["greedy", 0] == wanted["greedy", 0]


@pytest.mark.parametrize("blocks", [9, 14])
def test_the_tokens_are_the_same_under_preemption(llama: Subject, blocks: int) -> None:
    wanted = run(engine_of(llama), requests_of(llama, "drawn"))
    engine = engine_of(llama, rows=16, blocks=blocks)
    assert run(engine, requests_of(llama, "late")) == wanted
    assert engine.stats().preemptions or blocks > 9


@pytest.mark.parametrize("restarts", [False, True])
def test_a_late_sequence_that_is_preempted_is_computed_again(
    llama: Subject, restarts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kept logits are dropped, whether it has a new row at the next draw or still waits."""
    [request] = requests_of(llama, "late")[:1]
    wanted = run(engine_of(llama), requests_of(llama, "drawn")[:1])
    engine = engine_of(llama)
    engine.submit(request)
    outputs = list[TokenOutput]()
    while len(outputs) < 5 or not engine.runner.late:
        outputs += engine.step()
    [sequence] = engine.scheduler.running
    engine.scheduler.preempt(sequence, StepPlan())
    if not restarts:
        rows, engine.scheduler.rows = engine.scheduler.rows, []
        assert not engine.step() and not engine.runner.late
        engine.scheduler.rows = rows
    monkeypatch.setattr(Late, "fill", Drawn.fill)  # from here on no mask is late
    outputs += engine.drain()
    assert [token for output in outputs for token in output.tokens] == wanted["greedy", 0]
    assert engine.stats().blocks_used == 0 and not engine.runner.late


def test_the_tokens_are_the_same_with_drafts(tiny: Subject) -> None:
    """Drafts of a late step are not accepted."""
    requests = requests_of(tiny, "drawn")
    wanted = run(engine_of(tiny), requests)
    engine = engine_of(tiny)
    speculation = speculating(engine, Oracle(whole(requests, wanted), 4))
    assert run(engine, requests_of(tiny, "late")) == wanted
    assert speculation.accepted and engine.stats().blocks_used == 0


def test_others_go_on_while_a_mask_never_comes(llama: Subject) -> None:
    """A mask that never comes costs others no step, and its sequence can be aborted."""
    engine = engine_of(llama)
    stuck, *others = requests_of(llama, "drawn")
    wanted = run(engine_of(llama), others)
    [stuck] = requests_of(llama, "never")[:1]
    tokens: dict[tuple[str, int], list[int]] = {}
    outputs = list[TokenOutput]()
    for request in (stuck, *others):
        engine.submit(request)
    while len([output for output in outputs if output.finish]) < 3:
        outputs += engine.step()
    for output in outputs:
        tokens.setdefault((output.id, output.index), []).extend(output.tokens)
    assert tokens == wanted
    steps = engine.stats().steps
    assert steps < LENGTH + 4
    # Its step has been computed once; without others nothing runs.
    assert not engine.step() and engine.stats().steps == steps
    [last] = engine.abort("greedy")
    assert last.finish == "abort" and not engine.busy
    assert engine.stats().blocks_used == 0


def test_other_processors_see_each_token_once(llama: Subject) -> None:
    """A processor on the device is called only where the sequence draws."""
    first = {"no_repeat": 7}
    fields: dict[str, Any] = {"max_tokens": LENGTH, "ignore_eos": True, "temperature": 0}
    found = []
    for name in ("drawn", "late"):
        rules = Sampling(processors={name: PLACES} | first, **fields)
        request = TokenRequest(id="greedy", tokens=llama.prompt[:9], sampling=rules)
        found.append(run(engine_of(llama), [request]))
    assert found[0] == found[1]


def test_an_error_of_the_draw_ends_late_sequences_too(
    llama: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(llama)
    [request] = requests_of(llama, "late")[:1]
    engine.submit(request)
    while not engine.runner.late:
        engine.step()

    def fail(*args: Any) -> torch.Tensor:
        raise ValueError("the draw fails")

    monkeypatch.setattr(engine.runner.sampler, "draw", fail)
    outputs = list[TokenOutput]()
    while engine.busy:
        outputs += engine.step()
    assert [output.finish for output in outputs] == ["error"]
    assert engine.stats().blocks_used == 0
