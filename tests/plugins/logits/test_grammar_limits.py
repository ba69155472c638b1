"""Grammars that cost too much are refused under limits, and nothing of a schema is logged."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import get_native_id
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from tiny.grammars import Walker, added, vocabulary

from ostro.core.errors import RequestError
from ostro.core.tokenizer.vocabulary import Vocabulary
from ostro.plugins.logits.grammar import compiler as module
from ostro.plugins.logits.grammar.compiler import Compiler
from ostro.plugins.logits.grammar.processor import GrammarProcessor

SLOW = {"regex": "|".join(f"{i:x}q{i * 7919:x}" for i in range(16_000))}
"""It takes more than a tenth of a second of processor time."""


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    """A compiler of this test. Its clock stands still: processor time alone ends a compilation."""
    made = Compiler(seconds=10, clock=lambda: 0.0)
    monkeypatch.setattr(module, "COMPILER", made)
    yield made
    made.close()


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The grammars that this process compiles."""
    built, build = list[str](), module.build_matcher

    def note(tokenizer: LLTokenizer, source: str) -> LLMatcher:
        built.append(source)
        return build(tokenizer, source)

    monkeypatch.setattr(module, "build_matcher", note)
    return built


def nested(levels: int) -> dict[str, Any]:
    """A schema with as many levels of arrays."""
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


HOSTILE: list[tuple[str, Any, str]] = [
    ("maxItems", {"json_schema": {"type": "array", "maxItems": 10**9}}, "#/maxItems: 1000000000"),
    ("minLength", {"json_schema": {"type": "string", "minLength": 10**9}}, "#/minLength"),
    ("enum of a million", {"json_schema": {"enum": list(range(10**6))}}, "at most 262144"),
    ("enum", {"json_schema": {"enum": list(range(20_000))}}, "#/enum: 20000 values; at most 10000"),
    ("alternatives", {"regex": "|".join(map(str, range(100_000)))}, "at most 262144"),
    ("5,000 levels", {"json_schema": nested(5000)}, "the schema nests"),
    ("number", {"json_schema": {"const": 10**30}}, "not valid JSON: can't serialize ints"),
    ("no JSON", {"json_schema": {"const": {1, 2, object()}}}, "not valid JSON"),
    ("surrogate", {"regex": "\ud800"}, "not valid JSON"),
    ("NaN", {"json_schema": {"const": float("nan")}}, "not valid JSON"),
    ("levels", {"json_schema": nested(200)}, "more than 100 levels"),
    ("parentheses", {"regex": "(" * 5000 + "a" + ")" * 5000}, "nest"),
    ("gbnf", {"gbnf": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000}, "nests too deeply"),
    ("lark", {"lark": "start: " + "(" * 5000 + '"a"' + ")" * 5000}, "nest"),
]


@pytest.mark.parametrize(("name", "parameter", "message"), HOSTILE, ids=[x[0] for x in HOSTILE])
def test_hostile_grammars_are_refused_and_the_next_compiles(
    own: Compiler, built: list[str], name: str, parameter: Any, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        GrammarProcessor.check(parameter, 100)
        GrammarProcessor.prepare(parameter, vocabulary())
    assert not built
    assert Walker({"regex": "a"}, vocabulary()).accepts("a")


@pytest.mark.parametrize("regex", ["(a+)+b", "((a{1,1000}){1,1000}){1,1000}", "(.{1,1000}x){1,99}"])
def test_expensive_looking_patterns_are_cheap(own: Compiler, regex: str) -> None:
    """llguidance compiles derivatives on demand, so nothing backtracks or is unrolled: the worker
    compiles them within the product's limit of processor time.
    """
    own.seconds = module.SECONDS
    walker = Walker({"regex": regex}, vocabulary())
    assert walker.next()


def test_a_compilation_is_killed_at_its_time_limit(own: Compiler, built: list[str]) -> None:
    own.compile({"regex": "a"}, vocabulary())
    assert len(built) == 1
    first = own.workers[0].pid or own.workers[1].pid
    own.seconds = 0.02
    with pytest.raises(RequestError, match=r"takes more than 0\.02 s; simplify it"):
        own.compile(SLOW, vocabulary())
    assert len(built) == 1, "this process never compiled it"
    assert not any(worker.pid == first and worker.running for worker in own.workers)
    # The error is kept: the same grammar starts no further process.
    with pytest.raises(RequestError, match="takes more than"):
        own.compile(SLOW, vocabulary())
    assert not any(worker.running for worker in own.workers)
    own.seconds = 10
    assert own.compile({"regex": "b"}, vocabulary()).matcher()


def test_a_worker_that_is_killed_is_replaced(own: Compiler) -> None:
    own.compile({"regex": "a"}, vocabulary())
    pid = next(worker.pid for worker in own.workers if worker.pid is not None)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert own.compile({"regex": "b"}, vocabulary()).matcher()


def test_memory_beyond_the_limit_ends_the_worker(
    own: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same worker with a limit that even a small grammar exceeds."""
    source = module.WORKER.read_text().replace("512 << 20", "1 << 20")
    (tmp_path / "worker.py").write_text(source)
    monkeypatch.setattr(module, "WORKER", tmp_path / "worker.py")
    with pytest.raises(RequestError, match="memory; simplify it"):
        own.compile(SLOW, vocabulary())
    monkeypatch.undo()
    assert own.compile({"regex": "b"}, vocabulary()).matcher()


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads")
def test_compilations_have_a_low_priority(own: Compiler) -> None:
    """Steps of the engine, in another thread of this process, go first."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    own.compile({"regex": "a"}, vocabulary())
    thread = own._builder.submit(lambda: os.getpriority(os.PRIO_PROCESS, get_native_id()))
    process = next(worker.pid for worker in own.workers if worker.pid is not None)
    lower = min(19, before + module.PRIORITY)
    assert thread.result() == os.getpriority(os.PRIO_PROCESS, process or 0) == lower
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_a_grammar_is_compiled_once(own: Compiler) -> None:
    one = own.compile({"regex": "a+", "field": "x"}, vocabulary())
    assert own.compile({"regex": "a+", "field": "y"}, vocabulary()) is one
    assert own.compile({"regex": "a+"}, vocabulary("trained")) is not one
    order = [{"properties": dict.fromkeys(names, True)} for names in ("ab", "ba")]
    made = [own.compile({"json_schema": schema}, vocabulary()) for schema in order]
    assert made[0] is not made[1], "the order of properties is that of the answer"


def test_the_cache_is_bounded(own: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 4)
    for i in range(12):
        own.compile({"choice": [str(i)]}, vocabulary())
    assert len(own._kept) == 4


def test_a_model_without_ends_or_tokens_is_refused() -> None:
    known = vocabulary()
    endless = Vocabulary(known.size, known.pieces, known.special, frozenset(), known.encode)
    for lacking, what in ((endless, "end-of-answer"), (Vocabulary(100), "tokenizer")):
        with pytest.raises(RequestError, match=what):
            GrammarProcessor.prepare({"regex": "a"}, lacking)


def test_nothing_of_a_grammar_is_logged(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "s3cret"
    with caplog.at_level(logging.DEBUG):
        for parameter in (
            {"json_schema": {"title": secret, "const": secret}},
            {"json_schema": {"not": secret}},
            {"regex": f"({secret}"},
            {"lark": f"start: {secret}"},
        ):
            try:
                compiled = GrammarProcessor.prepare(parameter, vocabulary())
            except RequestError:
                continue
            processor = GrammarProcessor(1, vocabulary(), None)  # type: ignore[arg-type]
            processor.update([added(0, compiled)], [], [])
    assert secret not in caplog.text
    assert secret not in "".join(capfd.readouterr())
