"""Logits processors that raise end the requests that use them; others go on."""

from __future__ import annotations

import pytest
from tiny.failing import (
    LONG,
    Build,
    ask,
    error_of,
    idle,
    outputs_of,
    processed,
    run,
    tokens_of,
)

from ostro.core.errors import OstroError, PluginError, RequestError
from ostro.plugins.conformance.parity import Subject, greedy


def test_a_processor_that_raises_in_check_refuses_its_request(
    faulty: Subject, engine_of: Build
) -> None:
    engine, prompt = engine_of(faulty), faulty.prompt[:20]
    wanted = greedy(engine, [prompt], LONG)[0]
    engine.submit(ask("good", prompt))
    first = tokens_of(engine.step())
    with pytest.raises(OstroError) as refused:
        engine.submit(processed("bad", prompt, "check"))
    text = str(refused.value)
    assert not isinstance(refused.value, RequestError)
    assert "KeyError: 'no such key' in check of the logits processor 'faulty'" in text
    assert "plugin faulty" in text and "faulty.py:" in text
    assert [*first, *tokens_of(outputs_of(engine)["good"])] == wanted
    idle(engine)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("apply", "ValueError: no such value in apply of the logits processor 'faulty'"),
        ("third apply", "ValueError: no third value in apply of the logits processor 'faulty'"),
        ("update", "IndexError: no such row in update of the logits processor 'faulty'"),
        ("memory", "MemoryError: no such room in apply of the logits processor 'faulty'"),
    ],
)
def test_a_processor_that_raises_ends_its_request_alone(
    faulty: Subject, engine_of: Build, fault: str, message: str
) -> None:
    engine, prompts = engine_of(faulty), [faulty.prompt[:n] for n in (20, 25)]
    wanted = greedy(engine, prompts, LONG)
    found = run(engine, ask("good", prompts[0]), processed("bad", prompts[1], fault))
    error = error_of(found["bad"])
    assert message in error and "plugin faulty" in error
    assert tokens_of(found["good"]) == wanted[0]
    count = len(tokens_of(found["bad"]))
    assert tokens_of(found["bad"]) == wanted[1][:count]
    assert count in ((1, 2) if fault == "third apply" else (0,)), "a token may still be unread"
    idle(engine)
    assert tokens_of(run(engine, processed("b", prompts[1], "nothing"))["b"]) == wanted[1]


def test_a_processor_error_in_update_ends_one_request_only(
    faulty: Subject, engine_of: Build
) -> None:
    engine, prompts = engine_of(faulty), [faulty.prompt[:n] for n in (20, 25)]
    wanted = greedy(engine, prompts, LONG)
    engine.submit(processed("good", prompts[0], "nothing"))
    found = run(engine, processed("bad", prompts[1], "update"))
    assert "IndexError" in error_of(found["bad"]) and tokens_of(found["good"]) == wanted[0]
    idle(engine)


def test_a_processor_is_created_again_after_it_raised(faulty: Subject, engine_of: Build) -> None:
    """Its state of the other rows may be invalid: their requests end as well."""
    engine, prompt = engine_of(faulty), faulty.prompt[:20]
    found = run(
        engine,
        ask("free", prompt),
        processed("beside", prompt, "nothing"),
        processed("bad", prompt, "third apply"),
    )
    assert "ValueError" in error_of(found["beside"]) and "ValueError" in error_of(found["bad"])
    assert len(tokens_of(found["free"])) == LONG
    made = engine.runner.sampler.processors.created
    assert "faulty" not in made
    assert len(tokens_of(run(engine, processed("next", prompt, "nothing"))["next"])) == LONG
    assert "faulty" in made
    idle(engine)


def test_a_processor_that_raised_twice_gets_no_more_requests(
    faulty: Subject, engine_of: Build, caplog: pytest.LogCaptureFixture
) -> None:
    engine, prompt = engine_of(faulty), faulty.prompt[:20]
    for id in ("first", "second"):
        found = run(engine, ask("free", prompt), processed(id, prompt, "third apply"))
        assert "ValueError" in error_of(found[id]) and len(tokens_of(found["free"])) == LONG
    assert "'faulty' (faulty:Faulty) raised 2 times and is turned off" in caplog.text
    with pytest.raises(PluginError, match="'faulty' raised errors and is turned off"):
        engine.submit(processed("third", prompt, "nothing"))
    assert len(tokens_of(run(engine, ask("free", prompt))["free"])) == LONG
    idle(engine)


def test_lack_of_memory_does_not_turn_a_processor_off(faulty: Subject, engine_of: Build) -> None:
    engine, prompt = engine_of(faulty), faulty.prompt[:20]
    for id in ("first", "second", "third"):
        assert "MemoryError" in error_of(run(engine, processed(id, prompt, "memory"))[id])
    assert len(tokens_of(run(engine, processed("next", prompt, "nothing"))["next"])) == LONG


def test_all_choices_of_a_request_end_with_it(faulty: Subject, engine_of: Build) -> None:
    engine = engine_of(faulty)
    found = run(engine, ask("bad", faulty.prompt, n=3, processors={"faulty": "third apply"}))
    ends = [output for output in found["bad"] if output.finish]
    assert sorted(output.index for output in ends) == [0, 1, 2]
    assert {output.finish for output in ends} == {"error"}
    idle(engine)


@pytest.mark.parametrize(
    ("fault", "returned"),
    [
        ("fewer rows", "[0, 128] float32"),
        ("fewer columns", "[1, 7] float32"),
        ("another dtype", "[1, 128] float16"),
        ("None", "None"),
        ("a list", "a value of type list"),
    ],
)
def test_a_wrong_result_of_a_processor_names_its_class_and_plugin(
    faulty: Subject, engine_of: Build, fault: str, returned: str
) -> None:
    engine = engine_of(faulty)
    error = error_of(run(engine, processed("bad", faulty.prompt[:20], fault))["bad"])
    assert f"faulty.Faulty.apply returned {returned}, expected [1, 128] float32" in error
    assert error.endswith("in apply of the logits processor 'faulty' (plugin faulty)")
    idle(engine)
