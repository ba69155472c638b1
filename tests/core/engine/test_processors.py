"""Logits processors: their calls and their rows, in both loops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tiny.processors import LOG

from ostro import hookimpl
from ostro.core.engine.engine import Engine
from ostro.core.engine.processors import Processors
from ostro.core.errors import PluginError, RequestError
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Format, LogitsProcessor, Quantizer
from ostro.core.settings import Settings
from ostro.plugins.conformance.parity import Subject, subject

FIRST = 7


def record(name: str, kind: str, order: int = 0, **reads: bool) -> LogitsProcessor:
    return LogitsProcessor(name=name, processor=f"tiny.processors:{kind}", order=order, **reads)


RECORDS = (
    record("no_repeat", "NoRepeat"),
    record("host_no_repeat", "HostNoRepeat", host_ids=True),
    record("mask", "MaskNoRepeat", mask=True),
    record("late", "Halve", order=5),
    record("early", "Favour", order=-5),
    record("later", "Favour", order=9),
)


@pytest.fixture(scope="module")
def tiny() -> Iterator[Subject]:
    plugins = PluginManager()
    plugins.load(Settings())
    with subject(plugins, "llama") as made:
        yield made


def engine_of(tiny: Subject, *, replay: bool = False, seqs: int = 4, blocks: int = 64) -> Engine:
    engine = tiny.engine(rows=40, blocks=blocks, replay=replay, max_seqs=seqs)
    sampler = engine.runner.sampler
    sampler.processors = Processors(RECORDS, seqs, sampler.vocab, sampler.device)
    if replay:
        engine.runner.capture()
    LOG.clear()
    return engine


def run(
    engine: Engine, requests: list[tuple[list[int], dict[str, int]]], n: int
) -> list[list[int]]:
    for i, (prompt, processors) in enumerate(requests):
        rules = Sampling(temperature=0, max_tokens=n, ignore_eos=True, processors=processors)
        engine.submit(TokenRequest(id=str(i), tokens=prompt, sampling=rules))
    answers: dict[str, list[int]] = {str(i): [] for i in range(len(requests))}
    for output in engine.drain():
        answers[output.id] += output.tokens
    return list(answers.values())


def expected(tiny: Subject, prompt: list[int], n: int, banned: int | None) -> list[int]:
    """Greedy, but never `banned` first, nor a token twice in a row; None bans nothing."""
    tokens, free = list(prompt), banned is None
    for _ in range(n):
        logits = tiny.run_reference(tokens)[-1].clone()
        if not free:
            logits[banned] = float("-inf")
        tokens.append(int(logits.argmax()))
        banned = tokens[-1]
    return tokens[len(prompt) :]


@pytest.mark.parametrize("replay", [False, True])
def test_processors_get_the_sampled_tokens(tiny: Subject, replay: bool) -> None:
    """On the device, on the host and as masks; a row without processors is unchanged."""
    prompts = [tiny.prompt[:n] for n in (9, 17, 30, 12)]
    engine = engine_of(tiny, replay=replay)
    parameters = [{"no_repeat": FIRST}, {"host_no_repeat": 0}, {}, {"mask": FIRST}]
    answers = run(engine, list(zip(prompts, parameters, strict=True)), 12)
    assert answers == [
        expected(tiny, prompts[0], 12, FIRST),
        expected(tiny, prompts[1], 12, prompts[1][-1]),
        expected(tiny, prompts[2], 12, None),
        expected(tiny, prompts[3], 12, FIRST),
    ]


@pytest.mark.parametrize("replay", [False, True])
def test_an_error_of_one_mask_ends_its_request_alone(tiny: Subject, replay: bool) -> None:
    engine, prompt = engine_of(tiny, replay=replay), tiny.prompt[:9]
    for id, parameter in (("bad", -5), ("good", FIRST)):
        rules = Sampling(
            temperature=0, max_tokens=12, ignore_eos=True, processors={"mask": parameter}
        )
        engine.submit(TokenRequest(id=id, tokens=prompt, sampling=rules))
    tokens, errors = {"bad": list[int](), "good": list[int]()}, []
    while engine.busy:
        for output in engine.step():
            tokens[output.id] += output.tokens
            errors += [(output.id, output.error)] if output.error else []
    assert tokens["good"] == expected(tiny, prompt, 12, FIRST)
    assert tokens["bad"] == expected(tiny, prompt, 5, 5)
    [(id, error)] = errors
    assert id == "bad" and "no more tokens" in str(error)


def test_sequences_that_end_while_masks_are_made_draw_nothing_more(tiny: Subject) -> None:
    """In replay mode a step is read after the forward pass of the next one."""
    engine, prompts = engine_of(tiny, replay=True), [tiny.prompt[:n] for n in (9, 12, 17)]
    ends = [expected(tiny, prompt, 6, FIRST)[-1] for prompt in prompts]
    for i, prompt in enumerate(prompts):
        processors, stops = {"mask": FIRST}, (ends[i],) if i < 2 else ()
        rules = Sampling(
            temperature=0, max_tokens=10, ignore_eos=True, stop_ids=stops, processors=processors
        )
        engine.submit(TokenRequest(id=str(i), tokens=prompt, sampling=rules))
    answers = {str(i): list[int]() for i in range(3)}
    for output in engine.drain():
        answers[output.id] += output.tokens
    for i, prompt in enumerate(prompts):
        wanted = expected(tiny, prompt, 10, FIRST)
        assert answers[str(i)] == (wanted[: wanted.index(ends[i])] if i < 2 else wanted)


def test_rows_that_read_tokens_draw_in_every_step(tiny: Subject) -> None:
    """Also if steps are read one pass late."""
    engine, counts = engine_of(tiny, replay=True), {"reads": 0, "free": 0}
    for id, processors in (("reads", {"host_no_repeat": FIRST}), ("free", {"no_repeat": FIRST})):
        rules = Sampling(temperature=0, max_tokens=10, ignore_eos=True, processors=processors)
        engine.submit(TokenRequest(id=id, tokens=tiny.prompt[:9], sampling=rules))
    before = engine.stats().steps
    for output in engine.drain():
        counts[output.id] += len(output.tokens)
    assert counts == {"reads": 10, "free": 10}
    assert engine.stats().steps - before <= 11


def test_processors_run_in_the_order_of_their_records(tiny: Subject) -> None:
    prompt = tiny.prompt[:9]
    plain = expected(tiny, prompt, 1, None)
    for names, first in (({"early", "late"}, plain), ({"late", "later"}, [5]), ({"early"}, [5])):
        parameters = dict.fromkeys(names, 1)
        assert run(engine_of(tiny), [(prompt, parameters)], 1) == [first], names


def test_a_reused_row_is_removed_first(tiny: Subject) -> None:
    engine = engine_of(tiny, seqs=1)
    prompt, parameters = tiny.prompt[:9], {"no_repeat": FIRST}
    alone = run(engine, [(prompt, parameters)], 6)
    assert run(engine, [(prompt, {}), (prompt, parameters)], 6)[1:] == alone
    assert LOG == [("added", 0, ()), ("removed", 0, ()), ("added", 0, ())]


def test_a_preempted_sequence_is_added_with_its_output(tiny: Subject) -> None:
    prompts = [tiny.prompt[:n] for n in (20, 21, 22)]
    engine = engine_of(tiny, blocks=8)
    answers = run(engine, [(prompt, {"no_repeat": FIRST}) for prompt in prompts], 30)
    assert engine.stats().preemptions and any(output for what, _, output in LOG if what == "added")
    assert answers == [expected(tiny, prompt, 30, FIRST) for prompt in prompts]


def test_unknown_processors_and_tokens_are_rejected(tiny: Subject) -> None:
    engine = engine_of(tiny)
    with pytest.raises(RequestError, match="no logits processor 'no_repaet'; nearest: no_repeat"):
        run(engine, [(tiny.prompt[:9], {"no_repaet": 1})], 1)
    with pytest.raises(RequestError, match="999 is not a token id"):
        run(engine, [(tiny.prompt[:9], {"no_repeat": 999})], 1)
    assert not engine.busy


def test_logprobs_are_computed_after_processors(tiny: Subject) -> None:
    engine, prompt = engine_of(tiny), tiny.prompt[:9]
    plain = tiny.run_reference(prompt)[-1].clone()
    banned = int(plain.argmax())
    rules = Sampling(temperature=0, max_tokens=1, logprobs=2, processors={"no_repeat": banned})
    engine.submit(TokenRequest(id="a", tokens=prompt, sampling=rules))
    (entry,) = engine.drain()[0].logprobs or []
    plain[banned] = float("-inf")
    shares = plain.log_softmax(-1)
    assert entry.token == int(shares.argmax())
    assert entry.logprob == pytest.approx(float(shares.max()), abs=1e-4)


class Second:
    """A plugin with a processor and a weight format that another one has as well."""

    @hookimpl
    def ostro_logits_processors(self) -> Iterator[LogitsProcessor]:
        yield record("second", "NoRepeat")

    @hookimpl
    def ostro_quantizers(self) -> Iterator[Quantizer]:
        made = (Format(name="second2", bits=2.0),)
        yield Quantizer(name="second", claims=lambda *_: False, storage="x:Y", makes=made)


def test_a_name_of_two_plugins_names_both(tiny: Subject) -> None:
    plugins = PluginManager()
    plugins.load(Settings())
    plugins.register(Second(), "one")
    plugins.register(Second(), "two")
    both = r"is claimed by one \(registered\) and two \(registered\)"
    made = replace(tiny, plugins=plugins)
    with pytest.raises(PluginError, match=f"logits_processors: 'second' {both}"):
        made.engine().check_processors(Sampling(processors={"second": 1}))
    for options in ({"quant": "SECOND2"}, {"topology": "q_proj = second2"}):
        with pytest.raises(PluginError, match=f"quantizers: the format '.*' {both}"):
            made.load(**options)
