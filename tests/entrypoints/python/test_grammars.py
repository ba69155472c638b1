"""Structured output in Python and in `ostro run`: schemas, types and grammars as arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import pydantic
import pytest
from tiny.model import make_model

import ostro
from ostro.core.engine.processors import Processors
from ostro.core.errors import RequestError, UsageError
from ostro.entrypoints.cli import main
from ostro.entrypoints.python.model import LocalModel
from ostro.entrypoints.python.requests import schema_of

TINY: dict[str, Any] = {"temperature": 1, "max_tokens": 90}


@dataclass
class Point:
    x: Literal[1, 2, 3]
    on: bool


class Pair(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    left: Literal["a", "b"]
    right: bool


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    size: Literal["s", "m"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LocalModel]:
    with ostro.load(folder) as loaded:
        yield loaded


def ended(model: LocalModel, **arguments: Any) -> list[str]:
    """The answers of four choices that end by themselves."""
    answers = model.stream("hello", n=4, seed=5, **TINY, **arguments).collect()
    return [answer.text for answer in answers if answer.finish == "stop"]


def test_answers_have_the_type(model: LocalModel) -> None:
    pairs = ended(model, schema=Pair)
    assert pairs and all(Pair.model_validate_json(text) for text in pairs)
    sizes = ended(model, schema=Strict)
    assert sizes and all(msgspec.json.decode(text, type=Strict) for text in sizes)
    several = ended(model, schema=list[Literal["q", "r"]])
    assert several and all(set(json.loads(text)) <= {"q", "r"} for text in several)
    assert ended(model, schema={"const": 7}) == ["7"] * 4


def test_a_dataclass_has_a_schema() -> None:
    assert schema_of(Point)["$defs"]["Point"]["required"] == ["x", "on"]
    assert schema_of(list[Pair])["items"] == {"$ref": "#/$defs/Pair"}


def test_answers_match_a_grammar(model: LocalModel) -> None:
    codes = ended(model, regex="[a-c]{2}")
    assert codes and all(re.fullmatch("[a-c]{2}", code) for code in codes)
    assert set(ended(model, choice=["left", "right"])) <= {"left", "right"}
    assert ended(model, lark='start: "x"{3}') == ["xxx"] * 4
    assert ended(model, gbnf='root ::= "y"') == ["y"] * 4
    assert ended(model, yacc="%%\na : 'z' b ; b : ;") == ["z"] * 4
    greedy = model.generate("hello", temperature=0, choice=["left", "right"])
    assert greedy == model.generate("hello", temperature=0, regex="left|right")


def test_what_is_left_out_of_a_grammar_is_the_model(model: LocalModel) -> None:
    plain = model.generate("hello", temperature=0, max_tokens=8)
    assert model.generate("hello", temperature=0, max_tokens=8, regex="(?s:.*)") == plain


def test_contradictions_are_refused(model: LocalModel) -> None:
    for arguments, error, words in (
        ({"schema": {"type": 7}}, RequestError, "schema: #/type: 7"),
        ({"schema": 7}, UsageError, "schema: 7 has no JSON schema"),
        ({"regex": "a", "choice": ["a"]}, UsageError, "regex, choice: one constraint"),
        ({"regex": "a", "ignore_eos": True}, RequestError, "ignore_eos and structured output"),
        ({"regex": "(?=a)"}, RequestError, "look-around"),
    ):
        with pytest.raises(error, match=re.escape(words)):
            model.generate("hello", **arguments)
    assert model.generate("hello", choice=["ok"]) == "ok"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["run", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_run_takes_a_schema(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "schema.json").write_text('{"const": {"a": "b"}}')
    (tmp_path / "list.json").write_text("[1]")
    words = ["-m", str(folder), "-i", "hello", "--plain", "--schema"]
    code, out, _ = run(capsys, *words, str(tmp_path / "schema.json"))
    assert (code, json.loads(out)) == (0, {"a": "b"})
    for file, message in (("list.json", "which is an object"), ("none.json", "No such file")):
        code, _, err = run(capsys, *words, str(tmp_path / file))
        assert code == 2 and message in err


def test_proposed_tokens_obey_the_grammar(
    folder: Path, model: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy answers with and without speculation are equal; drafts come from the prompt.

    The grammar forces most of these tokens: they are drawn here.
    """
    monkeypatch.setattr(Processors, "forced", lambda self, sequence: ())
    prompt = '{"a": 1, "b": 2} {"a": 1, "b": 2} {"a": 1, '
    schema = {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2}
    asks: list[dict[str, Any]] = [{"schema": schema}, {"regex": r'(\{"a": 1, "b": 2\} ?){2,4}'}]
    with ostro.load(folder, speculate="ngram") as faster:
        for ask in asks:
            plain = model.generate(prompt, temperature=0, max_tokens=48, **ask)
            assert faster.generate(prompt, temperature=0, max_tokens=48, **ask) == plain
        stats = faster.engine.stats()
    assert stats.drafted_tokens and stats.accepted_tokens
