"""Grammars as regular expressions, and these in JSON strings: they allow the same texts."""

from __future__ import annotations

import json

import pytest
from tiny.drawings import tokenizer

from ostro.core.errors import OstroError, RequestError, Unsupported
from ostro.plugins.parsers.json_strings import in_json
from ostro.plugins.parsers.regular import COMMON, MAX_LENGTH, expression_of, in_slashes

llguidance = pytest.importorskip("llguidance")

LETTERS = ["", *'a"\\/A1 é\n\t\x01\x1f', "\n\n", '"\\', "ab", "\\n"]
TEXTS = [
    *LETTERS,
    '#a"b',
    '// a"',
    '/* "*/',
    "-- x",
    '"a\\"b"',
    "1.",
    ".5",
    "1e5",
    "+1.5e-3",
    "a_1",
]
PATTERNS = (
    *(
        r".",
        r"(?s:.)",
        r"(?s).",
        r".*",
        r"[^a]",
        r"[^\n]+",
        r"[ -~]",
        r"[]\"]",
        r"[^\W]",
        r"[\n\t]",
    ),
    *(r"[\n\t]", r"\s", r"\S", r"\w", r"\W", r"\d", r"\D", r"\n", r'"', r"\"", r"\\", r"\/"),
    *(r"\x22", r"\x{22}", r"\u0022", r"\u{5c}", r'[\p{L}"]', r"\p{L}", r"\P{L}", r"[^\p{N}]"),
    *(
        r"(?i:a|\n)b?",
        r'(?:"|x)?a{1,2}b?',
        r"(?P<q>\")(\\)",
        r"(?s:(?-s:.)|\n)",
        r"a|\n\n|",
        r"\\n",
    ),
)
GRAMMARS = (
    'start: "a\\"b"i | "\\\\" "\\n"?',
    'start: "!".."~"',
    '# Sums.\nstart: (x | y)\n  | x y -> both\nx: "a"\n?y: "b" ["1"] // an option',
    'start: X ~ 2 | Y ~ 1..3\nX: "\\n"\nY: /[a-b]/i',
    'start: A{2} | B{1,2}\nA: "\\n"\nB: "\\""',
    "start: NL | D\n%import common.LF -> NL\n%import common (INT, DIGIT)\nD: DIGIT",
    "start: a*\n!a: /[ab]/",
    "start:\n  | /x/",
)


def accepts(grammar: str, text: str) -> bool:
    """Whether a text is one of a grammar."""
    source = llguidance.LLMatcher.grammar_from_lark(grammar)
    matcher = llguidance.LLMatcher(tokenizer("hermes", False), source)
    assert not matcher.is_error(), matcher.get_error()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


def one(pattern: str) -> str:
    """The grammar of a regular expression. An empty text is of no terminal."""
    return f"start: X?\nX: /{pattern}/" if pattern else "start: "


def check(grammar: str, expression: str, texts: list[str]) -> None:
    """A grammar, its expression, and that in JSON allow the same of some texts."""
    allowed = [text for text in texts if accepts(grammar, text)]
    assert allowed == [text for text in texts if accepts(one(expression), text)]
    strings = {json.dumps(text, ensure_ascii=False)[1:-1]: text for text in texts}
    assert allowed == [strings[x] for x in strings if accepts(one(in_json(expression)), x)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_allows_the_same_in_json(pattern: str) -> None:
    check(one(pattern), pattern, LETTERS)


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_grammar_as_one_expression(grammar: str) -> None:
    texts = [*LETTERS, 'A"B', "b", "b1", "ab1", "aAb", "\n\n\n", '""', "x", "12", "\\\n"]
    check(grammar, expression_of(grammar), [text for text in texts if text])


@pytest.mark.parametrize("name", COMMON)
def test_terminals_of_the_library(name: str) -> None:
    grammar = f"start: X?\nX: {name}\n%import common.{name}"
    check(grammar, COMMON[name], TEXTS)
    assert any(accepts(grammar, text) for text in [*TEXTS, "\r"] if text)


@pytest.mark.parametrize(
    ("grammar", "kind", "words"),
    [
        ('start: a\na: "(" a ")"', Unsupported, "the rule a is recursive"),
        ("start: a", RequestError, "there is no rule a"),
        ('"a"', RequestError, "'\"a\"' is in no rule"),
        ('a: "b"', RequestError, "there is no rule start"),
        ('start: ("a"', RequestError, "'\\)' is missing"),
        ('start: "a")', Unsupported, "'\\)' is not supported"),
        ("start: *", RequestError, "repeats nothing"),
        ('start: "a" | +', RequestError, "repeats nothing"),
        ("start: /a/ & /b/", Unsupported, "'&' is not supported"),
        ("start: %json {}", Unsupported, "'%' is not supported"),
        ("start: <[12]>", Unsupported, "'<' is not supported"),
        ("start: @answer", Unsupported, "'@' is not supported"),
        ('start[lazy]: "a"', RequestError, "is in no rule"),
        ('start: "\\x"', Unsupported, "escape that JSON lacks"),
        ('%import common.FOO\nstart: "a"', RequestError, "no terminal 'FOO'"),
        ('%ignore " "\nstart: "a"', Unsupported, "'%ignore"),
        (f"start: {'(' * 3000}", RequestError, "nest more than"),
        (
            "\n".join(f"r{i}: r{i + 1}" for i in range(99)) + "\nstart: r0",
            RequestError,
            "nest more",
        ),
    ],
)
def test_other_grammars_are_refused(grammar: str, kind: type[OstroError], words: str) -> None:
    with pytest.raises(kind, match=words):
        expression_of(grammar)


def test_rules_that_double_each_other_are_limited() -> None:
    doubling = "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(40))
    with pytest.raises(Unsupported, match=str(MAX_LENGTH)):
        expression_of(f'{doubling}\nr40: "a"\nstart: r0')
    long = "\n".join(f"a{i}: /{'a' * 4000}/" for i in range(60))
    with pytest.raises(Unsupported, match=str(MAX_LENGTH)):
        expression_of(f"{long}\nstart: {' '.join(f'a{i}' for i in range(60))}")


@pytest.mark.parametrize("pattern", [r"[[:alpha:]]", r"[a&&b]", r"\p{P}", r"(?x:a b)", r"[\p{P}a]"])
def test_patterns_that_are_not_converted(pattern: str) -> None:
    with pytest.raises(Unsupported, match="regular expression"):
        in_json(pattern)


def test_slashes_are_escaped_once() -> None:
    assert in_slashes("a/b\\/c[/]\n\\\\/") == "a\\/b\\/c[\\/]\\n\\\\\\/"
    assert accepts(one(in_slashes("/\n")), "/\n")
