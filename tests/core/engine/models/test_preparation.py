"""Requests that are prepared for a logits processor in a thread, while others go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from ostro.core.engine.models.model_engines import ModelEngines
from ostro.core.engine.models.multi_model import MultiModelEngine
from ostro.core.engine.processors import AddedRequest, Processors
from ostro.core.errors import RequestError
from ostro.core.messages.commands import Failed, UnloadModel
from ostro.core.messages.outputs import TokenOutput
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import LogitsProcessor
from ostro.core.settings import Settings
from ostro.core.tokenizer.vocabulary import Vocabulary
from ostro.plugins.conformance.parity import Subject, subject

GATE = threading.Event()
PREPARED: list[Any] = []


class Slow:
    """Waits for `GATE` in `prepare`; the parameter may be an error to raise then."""

    def __init__(self, rows: int, vocabulary: Vocabulary, device: torch.device) -> None: ...

    @staticmethod
    def check(parameter: Any, vocab: int) -> None: ...

    @staticmethod
    def prepare(parameter: str, vocabulary: Vocabulary) -> str:
        assert threading.current_thread() is not threading.main_thread()
        assert parameter == "quick" or GATE.wait(60)
        if parameter == "refused":
            raise RequestError("this cannot be prepared", param="slow")
        if parameter == "broken":
            raise KeyError("no such thing")
        return f"{parameter} of {vocabulary.size}"

    def update(
        self, added: Sequence[AddedRequest], removed: Sequence[int], moved: Sequence[Any]
    ) -> None:
        PREPARED.extend(each.prepared for each in added)

    def apply(self, logits: Tensor, rows: Tensor, last_ids: Any) -> Tensor:
        return logits


@pytest.fixture(scope="module")
def tiny() -> Iterator[Subject]:
    plugins = PluginManager()
    plugins.load(Settings())
    with subject(plugins, "llama") as made:
        yield made


@pytest.fixture
def engine(tiny: Subject) -> Iterator[MultiModelEngine]:
    part = tiny.engine(rows=40, blocks=64, max_seqs=4)
    sampler = part.runner.sampler
    record = LogitsProcessor(name="slow", processor=f"{__name__}:Slow")
    sampler.processors = Processors([record], 4, sampler.vocab, sampler.device)
    GATE.clear()
    PREPARED.clear()
    engine = MultiModelEngine({"tiny": ModelEngines(tokens=part)})
    yield engine
    GATE.set()
    engine.close()


def ask(id: str, tokens: list[int], parameter: str | None = None, **rules: Any) -> TokenRequest:
    processors = {} if parameter is None else {"slow": parameter}
    sampling = Sampling(max_tokens=4, ignore_eos=True, processors=processors, **rules)
    return TokenRequest(id=id, tokens=tokens, sampling=sampling)


def run(
    engine: MultiModelEngine, until: Callable[[], bool] | None = None
) -> dict[str, list[TokenOutput]]:
    found = dict[str, list[TokenOutput]]()
    while not until() if until else engine.busy:
        for output in engine.step():
            assert isinstance(output, TokenOutput)
            found.setdefault(output.id, []).append(output)
    return found


def test_other_requests_do_not_wait(engine: MultiModelEngine, tiny: Subject) -> None:
    engine.submit(ask("slow", tiny.prompt, "this"))
    engine.submit(ask("free", tiny.prompt))
    parts = engine.parts
    first = run(engine, lambda: not any(part.busy for part in parts))
    assert [output.finish for output in first["free"]][-1] == "length" and "slow" not in first
    assert engine.busy and not PREPARED
    GATE.set()
    rest = run(engine)
    assert rest["slow"][-1].finish == "length"
    assert PREPARED == [f"this of {engine.first.info.vocab}"]


def test_requests_of_another_owner_do_not_wait(engine: MultiModelEngine, tiny: Subject) -> None:
    """Twenty slow grammars of one API key kept all constrained answers of others for minutes."""
    for i in range(20):
        engine.submit(msgspec.structs.replace(ask(f"slow{i}", tiny.prompt, "this"), owner="ann"))
    ended = set[str]()
    for i in range(4):
        request = ask(f"quick{i}", tiny.prompt, "quick")
        engine.submit(msgspec.structs.replace(request, owner="bob"))
        while f"quick{i}" not in ended:
            ended |= {output.id for output in engine.step() if output.finish is not None}
    assert ended == {f"quick{i}" for i in range(4)}


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ("refused", "this cannot be prepared"),
        ("broken", "KeyError: 'no such thing' in prepare of the logits processor 'slow'"),
    ],
)
def test_an_error_ends_its_request_alone(
    engine: MultiModelEngine, tiny: Subject, parameter: str, message: str
) -> None:
    engine.submit(ask("bad", tiny.prompt, parameter))
    engine.submit(ask("good", tiny.prompt, "this"))
    GATE.set()
    found = run(engine)
    [event] = engine.events()
    assert isinstance(event, Failed) and event.id == "bad" and message in event.message
    assert "bad" not in found and found["good"][-1].finish == "length"


def test_a_request_is_aborted_before_it_is_prepared(
    engine: MultiModelEngine, tiny: Subject
) -> None:
    engine.submit(ask("gone", tiny.prompt, "this"))
    assert engine.abort("gone") == [] and not engine.waiting
    engine.submit(ask("kept", tiny.prompt, "that"))
    GATE.set()
    assert set(run(engine)) == {"kept"} and not engine.events()
    assert len(PREPARED) == 1


def test_a_choice_is_aborted_before_its_request_is_prepared(
    engine: MultiModelEngine, tiny: Subject
) -> None:
    engine.submit(ask("three", tiny.prompt, "this", n=3))
    [aborted] = engine.abort("three", 1)
    assert isinstance(aborted, TokenOutput) and (aborted.index, aborted.finish) == (1, "abort")
    GATE.set()
    outputs = run(engine)["three"]
    assert {o.index for o in outputs if o.finish == "length"} == {0, 2}


def test_a_model_is_not_freed_while_a_request_for_it_is_prepared(
    engine: MultiModelEngine, tiny: Subject
) -> None:
    engine.submit(ask("slow", tiny.prompt, "this"))
    engine.change_models(UnloadModel(id="1", model="tiny"))
    assert not engine.idle
    GATE.set()
    assert run(engine)["slow"][-1].finish == "length"
