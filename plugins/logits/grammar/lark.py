"""Grammars in Lark's syntax: their JSON schemas, and options that ostro cannot honour."""

from __future__ import annotations

import json
import re

from llguidance import LLMatcher

from ostro.errors import RequestError
from ostro.plugins.logits.grammar.literal import BACKSLASH, ends_within_escape
from ostro.plugins.logits.grammar.schema import WHITESPACE, read_schema

QUOTED = re.compile(
    r'"(?:\\.|[^"\\\n])*"'  # a text
    r"|/(?![/*])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/"  # a regular expression
    r"|(?://|\#)[^\n]*"  # a comment
)
OPTION = re.compile(r"\[[^\[\]]*\b(stop|max_tokens|temperature)\s*=[^\[\]]*\]")
REASONS = {
    "stop": "its text would be removed from the answer; use suffix or lazy",
    "max_tokens": "limit the repetitions of the terminal",
    "temperature": "set the temperature of the request",
}


JSON = re.compile(rf"{QUOTED.pattern}|(?P<json>%json\s*)")
DECODER = json.JSONDecoder()


def read_lark(text: str) -> str:
    """A grammar whose `%json` are schemas as `read_schema` returns them.

    Those with llguidance's option `lenient` lose the keywords that no grammar expresses.

    Raises RequestError for a schema as `read_schema`, and for an option of a rule that ostro does
    not honour.
    """
    check_options(text)
    parts, begin, position = list[str](), 0, 0
    while match := JSON.search(text, position):
        position = match.end()
        if match["json"] is None:
            continue
        try:
            schema, end = DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            continue  # llguidance states the fault
        lenient = isinstance(schema, dict) and schema.get("x-guidance") == {"lenient": True}
        if lenient:
            del schema["x-guidance"]
        checked = read_schema(schema, lenient=lenient)
        options = {"x-guidance": {"whitespace_pattern": WHITESPACE}}
        checked = {**options, **({} if checked is True else checked)}
        parts += [text[begin:position], json.dumps(checked)]
        begin = position = end
    return "".join([*parts, text[begin:]])


def read_regex(pattern: str) -> str:
    """A grammar of the texts that a regular expression matches as a whole.

    Raises RequestError for a pattern that ends within an escape.
    """
    if ends_within_escape(pattern):
        raise RequestError(BACKSLASH)
    [grammar] = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"]
    source: str = grammar["lark_grammar"]
    return source


def check_options(text: str) -> None:
    """Raise RequestError for an option of a rule that ostro does not honour."""
    bare = QUOTED.sub(" ", text)
    if found := OPTION.search(bare):
        name = found[1]
        raise RequestError(f"lark: the option {name!r} is not supported; {REASONS[name]}")
