"""Help, examples, positional models, and the nearest name after a typo."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator

import pytest

from ostro.entrypoints.cli import COMMANDS, build
from ostro.entrypoints.cli.examples import EXAMPLES
from ostro.entrypoints.cli.options import parse_settings
from ostro.entrypoints.cli.parser import Parser, wrap_command

BUILT_IN = [*COMMANDS, "plugin"]


def command(name: str) -> Parser:
    """The parser of a command with its options."""
    parser, _ = build([name])
    (subparsers,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    found = subparsers.choices[name]
    assert isinstance(found, Parser)
    return found


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and its subparsers."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from parsers(each)


def faults(parser: argparse.ArgumentParser) -> list[str]:
    """The arguments without help, and the options whose value has no default in their help."""
    found = []
    for action in parser._actions:
        name = "/".join(action.option_strings) or action.dest
        takes_value = action.option_strings and action.nargs != 0 and not action.required
        repeated = action.default == [] or isinstance(action, argparse.BooleanOptionalAction)
        text = action.help or ""
        if not text or (takes_value and not repeated and "default: " not in text):
            found.append(f"{parser.prog} {name}")
        elif takes_value and isinstance(action.default, int | float | str):
            default = str(action.default).removesuffix(".0")
            if f"default: {default}" not in text:
                found.append(f"{parser.prog} {name}: {text}")
    return found


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_option_has_help_and_its_default(name: str) -> None:
    assert not [fault for parser in parsers(command(name)) for fault in faults(parser)]


def test_options_without_help_or_default_are_found() -> None:
    parser = argparse.ArgumentParser("x")
    parser.add_argument("--silent")
    parser.add_argument("--vague", help="a number")
    parser.add_argument("--wrong", default=2, help="a number (default: 3)")
    parser.add_argument("--right", default=30.0, help="seconds (default: 30)")
    assert [fault.partition(":")[0] for fault in faults(parser)] == [
        "x --silent",
        "x --vague",
        "x --wrong",
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_that_parse(name: str) -> None:
    assert len(EXAMPLES[name]) >= 3
    for line in EXAMPLES[name]:
        program, *words = shlex.split(line.partition(" > ")[0])
        assert (program, words[0]) == ("ostro", name)
        parser, _ = build(words)
        parser.parse_args(words)
        assert line in command(name).format_help()


@pytest.mark.parametrize("name", BUILT_IN)
def test_help_fits_narrow_terminals(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Only a line of one word is longer than the terminal, and no word is broken."""
    helps = {}
    for columns in ("40", "1000"):
        monkeypatch.setenv("COLUMNS", columns)
        all_parsers = [each for each in parsers(command(name)) if isinstance(each, Parser)]
        helps[columns] = [text for p in all_parsers for text in (p.format_help(), p.help_text(()))]
    for narrow, wide in zip(helps["40"], helps["1000"], strict=True):
        assert [x for x in narrow.splitlines() if len(x) > 40 and " " in x.strip()] == []
        assert narrow.replace("\\\n", " ").split() == wide.split()


def test_examples_are_continued_after_words() -> None:
    line = "ostro bench --url http://127.0.0.1:1234 'a quoted text'"
    assert wrap_command(line, 40) == (
        "  ostro bench --url \\\n    http://127.0.0.1:1234 \\\n    'a quoted text'"
    )
    assert shlex.split(wrap_command(line, 20).replace("\\\n", "")) == shlex.split(line)


def test_help_has_two_tiers(ostro) -> None:
    common, everything = ostro("run", "--help").out, ostro("run", "--help-all").out
    assert "--temperature" in common and "--kv-dtype" not in common
    assert "--help-all lists" in common
    assert "--temperature" in everything and "--kv-dtype" in everything
    assert "more options" not in everything
    assert "more options" not in ostro("doctor", "--help").out
    assert "--request-timeout" not in ostro("serve", "--help").out
    assert "--request-timeout" in ostro("serve", "--help-all").out


def test_the_usage_shows_positionals_and_required_options(ostro) -> None:
    assert ostro("draw", "--help").out.startswith(
        "usage: ostro draw [options] -o FILE [REF] PROMPT"
    )


@pytest.mark.parametrize(
    ("words", "usage", "text"),
    [
        (["srve"], "ostro", "unknown command 'srve'; nearest: serve"),
        (["smollm2"], "ostro", "unknown command 'smollm2'"),
        (["run", "--temprature", "0"], "ostro run", "unknown option --temprature; nearest: --temp"),
        (["run", "--temprature=0"], "ostro run", "unknown option --temprature; nearest: --temp"),
        (["serve", "--prot", "1"], "ostro serve", "unknown option --prot; nearest: --port"),
        (["embed", "x", "--outptu", "f", "y"], "ostro embed", "option --outptu; nearest: --output"),
        (["plugin", "new", "x", "--knid", "y"], "ostro plugin new", "--knid; nearest: --kind"),
        (["bench", "smollm2", "hello"], "ostro bench", "unexpected argument 'hello'"),
        (["fit", "-m", "a", "b"], "ostro fit", "expected one model, got a and b"),
    ],
)
def test_wrong_usage_names_the_nearest(ostro, words: list[str], usage: str, text: str) -> None:
    ran = ostro(*words)
    assert ran.code == 2 and not ran.out
    assert ran.err.startswith(f"usage: {usage} [") and text in ran.err


@pytest.mark.parametrize("name", ["bench", "quality", "fit"])
def test_a_positional_is_the_model(name: str) -> None:
    assert command(name).parse_args(["./folder"]).model == "./folder"
    assert command(name).parse_args(["-m", "./folder"]).model == "./folder"
    assert command(name).parse_args([]).model is None
    settings = parse_settings(command("bench").parse_args(["org/name", "--context", "64"]))
    assert (settings.reference, settings.context) == ("org/name", 64)


def test_positionals_may_have_options_in_between() -> None:
    args = command("embed").parse_args(["minilm", "--dimensions", "4", "one", "two"])
    assert (args.first, args.texts, args.dimensions) == ("minilm", ["one", "two"], 4)
    args = command("serve").parse_args(["a", "--port", "80", "b=c"])
    assert (args.models, args.port) == (["a", "b=c"], 80)


def test_the_first_positional_is_the_model_unless_m_names_it(ostro, tiny: str) -> None:
    words = ("one", "--dimensions", "4", "two")
    first, with_m = ostro("embed", tiny, *words), ostro("embed", *words, "-m", tiny)
    rows = [json.loads(line) for line in first.out.splitlines()]
    assert [(row["text"], len(row["vector"])) for row in rows] == [("one", 4), ("two", 4)]
    assert first == with_m
    assert ostro("embed", tiny).code == 2
    assert "add QUERY" in ostro("rerank", tiny).err
    assert "add FILE" in ostro("transcribe", tiny).err
