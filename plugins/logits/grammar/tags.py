"""Structural tags: free text in which a tag begins a part with a grammar of its own.

The two forms of vLLM and SGLang are read: `structures` with `triggers`, and `format`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ostro.errors import RequestError
from ostro.plugins.logits.grammar.lark import read_lark, read_regex
from ostro.plugins.logits.grammar.literal import quote, write
from ostro.plugins.logits.grammar.parameter import describe

FREE = "/(?s:.*)/"
MAX_PARTS = 1000
"""The most parts of one structural tag."""
MAX_DEPTH = 20
FORMATS = "const_string, json_schema, regex, any_text, sequence, or, tag, triggered_tags"

Grammar = dict[str, Any]


def tags_to_lark(
    given: Mapping[str, Any],
    special: Mapping[str, int],
    schema_grammar: Callable[[Any], Grammar],
) -> list[Grammar]:
    """The grammars of a structural tag: first its own, then those of the parts.

    special: the ids of control tokens by spelling. Raises RequestError with the place of a fault.
    """
    writer = TagWriter(special, schema_grammar)
    if "format" in given:
        only(given, "structural_tag", "type", "format")
        start = writer.format(given["format"], "format", 0)
    else:
        only(given, "structural_tag", "type", "structures", "triggers")
        start = writer.triggered(read_structures(given), "structural_tag", 0)
    lines = [f"start: {start}", *writer.lines]
    return [{"lark_grammar": "\n".join(lines)}, *writer.grammars]


def read_structures(given: Mapping[str, Any]) -> dict[str, Any]:
    """The older form as `triggered_tags`."""
    tags = []
    for i, each in enumerate(list_of(given, "structures", "structural_tag")):
        place = f"structures[{i}]"
        only(each, place, "begin", "schema", "end")
        content = {"type": "json_schema", "json_schema": each.get("schema")}
        tags.append({**each, "content": content})
    for tag in tags:
        del tag["schema"]
    return {"tags": tags, "triggers": list_of(given, "triggers", "structural_tag")}


class TagWriter:
    """Writes rules of Lark for the parts of one structural tag."""

    def __init__(
        self, special: Mapping[str, int], schema_grammar: Callable[[Any], Grammar]
    ) -> None:
        self.special, self.schema_grammar = special, schema_grammar
        self.lines: list[str] = []
        self.grammars: list[Grammar] = []

    def rule(self, body: str, options: str = "") -> str:
        """A new rule; returns its name."""
        name = f"part_{len(self.lines)}"
        if len(self.lines) >= MAX_PARTS:
            raise RequestError(f"structural_tag: more than {MAX_PARTS} parts")
        self.lines.append(f"{name}{options}: {body}")
        return name

    def inner(self, grammar: Grammar) -> str:
        """A grammar of its own; returns a reference to it."""
        name = f"inner_{len(self.grammars)}"
        self.grammars.append({**grammar, "name": name})
        return f"@{name}"

    def format(self, given: Any, place: str, depth: int) -> str:
        """The rule of one format; returns its name."""
        kind = given.get("type") if isinstance(given, dict) else None
        if depth > MAX_DEPTH:
            raise RequestError(f"{place}: structural tags nest more than {MAX_DEPTH} levels")
        readers: dict[str, Callable[[Any, str, int], str]] = {
            "const_string": self.text,
            "json_schema": self.schema,
            "regex": self.regex,
            "grammar": self.lark,
            "any_text": self.free,
            "sequence": self.sequence,
            "or": self.either,
            "tag": self.tag,
            "triggered_tags": self.triggered,
        }
        if kind not in readers:
            found = f"{kind!r:.40}" if isinstance(kind, str) else describe(given)
            raise RequestError(f"{place}: the format {found} is not supported; use {FORMATS}")
        return readers[kind](given, place, depth)

    def text(self, given: Any, place: str, depth: int) -> str:
        """A fixed text."""
        only(given, place, "type", "value")
        return self.rule(write(text_of(given, "value", place), self.special))

    def schema(self, given: Any, place: str, depth: int) -> str:
        """JSON that satisfies a schema."""
        only(given, place, "type", "json_schema")
        schema = given.get("json_schema")
        if not isinstance(schema, dict | bool):
            raise RequestError(f"{place}: the schema is {describe(schema)}; expected an object")
        return self.rule(self.inner(self.schema_grammar(schema)))

    def regex(self, given: Any, place: str, depth: int) -> str:
        """Text that matches a regular expression."""
        only(given, place, "type", "pattern")
        source = read_regex(text_of(given, "pattern", place))
        return self.rule(self.inner({"lark_grammar": source}))

    def lark(self, given: Any, place: str, depth: int) -> str:
        """Text of a Lark grammar."""
        only(given, place, "type", "grammar")
        text = read_lark(text_of(given, "grammar", place))
        return self.rule(self.inner({"lark_grammar": text}))

    def free(self, given: Any, place: str, depth: int) -> str:
        """Any text, up to the end of the answer or of the tag around it."""
        only(given, place, "type")
        return self.rule(FREE)

    def sequence(self, given: Any, place: str, depth: int) -> str:
        """Formats one after the other."""
        only(given, place, "type", "elements")
        return self.rule(" ".join(self.each(given, "elements", place, depth)))

    def either(self, given: Any, place: str, depth: int) -> str:
        """One of several formats."""
        only(given, place, "type", "elements")
        return self.rule(" | ".join(self.each(given, "elements", place, depth)))

    def each(self, given: Any, name: str, place: str, depth: int) -> list[str]:
        """The rules of a list of formats."""
        found = enumerate(list_of(given, name, place))
        return [self.format(each, f"{place}.{name}[{i}]", depth + 1) for i, each in found]

    def tag(self, given: Any, place: str, depth: int) -> str:
        """A begin, a content and an end."""
        begin = write(text_of(given, "begin", place), self.special)
        return self.rule(f"{begin} {self.rest(given, place, depth)}")

    def rest(self, given: Any, place: str, depth: int) -> str:
        """The content and the end of a tag."""
        only(given, place, "type", "begin", "content", "end")
        content, end = given.get("content"), text_of(given, "end", place)
        if isinstance(content, dict) and content.get("type") == "any_text" and end:
            return self.until(end)
        return f"{self.format(content, f'{place}.content', depth + 1)} {write(end, self.special)}"

    def until(self, text: str) -> str:
        """Free text up to and including a text."""
        if text in self.special:
            return f"{self.rule(FREE)} <[{self.special[text]}]>"
        return self.rule(f"{FREE} {quote(text)}", "[lazy]")

    def triggered(self, given: Any, place: str, depth: int) -> str:
        """Free text in which each trigger begins one of the tags."""
        only(given, place, "type", "triggers", "tags", "at_least_one", "stop_after_first")
        tags, triggers = list_of(given, "tags", place), list_of(given, "triggers", place)
        calls = [
            self.call(tag, triggers, f"{place}.tags[{i}]", depth) for i, tag in enumerate(tags)
        ]
        once, needed = flag(given, "stop_after_first", place), flag(given, "at_least_one", place)
        one = self.rule(" | ".join(calls))
        if once:
            return one if needed else self.rule(f"{one} | {FREE}")
        return self.rule(f"{one}{'+' if needed else '*'} {self.rule(FREE)}")

    def call(self, tag: Any, triggers: list[Any], place: str, depth: int) -> str:
        """Free text up to the trigger of a tag, and the tag."""
        begin = text_of(tag, "begin", place)
        fitting = [each for each in triggers if isinstance(each, str) and begin.startswith(each)]
        if not begin or not fitting or not fitting[0]:
            raise RequestError(f"{place}: no trigger is the start of its begin {begin[:40]!r}")
        left = write(begin[len(fitting[0]) :], self.special)
        return self.rule(f"{self.until(fitting[0])} {left} {self.rest(tag, place, depth)}")


def only(given: Any, place: str, *names: str) -> None:
    """Raise RequestError unless `given` is an object with these keys alone."""
    if not isinstance(given, dict):
        raise RequestError(f"{place}: {describe(given)}; expected an object")
    if unknown := sorted(set(given) - set(names)):
        raise RequestError(f"{place}: unknown key {unknown[0][:40]!r}; expected {', '.join(names)}")


def text_of(given: Any, name: str, place: str) -> str:
    """A text in an object. Raises RequestError for others."""
    value = given.get(name) if isinstance(given, dict) else None
    if not isinstance(value, str):
        raise RequestError(f"{place}.{name}: {describe(value)}; expected a text")
    return value


def list_of(given: Any, name: str, place: str) -> list[Any]:
    """A list in an object that is not empty. Raises RequestError for others."""
    value = given.get(name)
    if not isinstance(value, list) or not 0 < len(value) <= MAX_PARTS:
        raise RequestError(f"{place}.{name}: expected a list of 1..{MAX_PARTS} entries")
    return value


def flag(given: Any, name: str, place: str) -> bool:
    """A boolean in an object, False without it. Raises RequestError for others."""
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(f"{place}.{name}: {describe(value)}; expected a boolean")
    return value
