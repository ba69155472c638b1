"""Calls of Gemma: `call:name{key:value}`, with strings between markers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ostro.errors import Unsupported
from ostro.pipelines import Tool
from ostro.plugins.parsers.lark import Rules, ordered, parameters_of, quoted
from ostro.plugins.parsers.turn import Reader, TurnParser

WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


class BraceParser(TurnParser):
    """A notation with braces. A call is held back until it is complete.

    ends   the marker behind a call
    quote  the marker before and behind a string
    """

    ends: tuple[str, ...]
    quote: str

    @classmethod
    def write_calls(cls, rules: Rules, tools: Sequence[Tool], exact: bool, parallel: bool) -> str:
        """Calls with the parameters of the tools. Raises Unsupported for strict tools.

        Values in braces and brackets are not JSON, so that schemas do not apply to them.
        """
        if any(tool.strict for tool in tools):
            raise Unsupported(
                "strict: the arguments in the notation of this model are not JSON, and cannot "
                "follow a schema; leave it out",
                param="tools",
            )
        quote, end = rules.text(cls.quote), rules.text(cls.ends[0])
        string = rules.rule(f"{quote} {rules.until(cls.quote)}")
        scalar = rules.rule('/-?(0|[1-9][0-9]*)(\\.[0-9]+)?/ | "true" | "false" | "null"')
        value, pair = f"part_{len(rules.lines) + 1}", f"part_{len(rules.lines)}"
        rules.rule(f'({string} | /[A-Za-z_][A-Za-z0-9_]*/) ":" {value}')
        objects = f'"{{" ({pair} ("," {pair})*)? "}}"'
        rules.rule(f'{string} | {scalar} | {objects} | "[" ({value} ("," {value})*)? "]"')
        calls = []
        for tool in tools:
            own = value
            if tool.format is not None:
                own = f"{quote} {rules.text_of(tool.format, cls.quote)}"
            given = [
                (rules.rule(f"{quoted(f'{name}:')} {own}"), required)
                for name, _, required in parameters_of(tool)
            ]
            braces = f'"{{" {ordered(given, quoted(","))} "}}"'
            calls.append(f"{quoted(f'call:{tool.name}')} {braces} {end}")
        one = rules.either(calls)
        return one + (f" ({rules.text(cls.begins[0])} {one})*" if parallel else "")

    def read_calls(self, marker: str) -> Reader[None]:
        """Read one call. What is not a call is text, with its marker."""
        ends, pieces = self.marks(*self.ends), list[str]()
        found = yield from self.until(ends, pieces.append, exact=True)
        text = "".join(pieces)
        head, brace, _ = text.partition("{")
        name = head.strip().removeprefix("call:").strip()
        if not found or not name or not (brace or name in self.unconstrained):
            self.write(marker + text + found)
            return
        body = text[len(head) :] or "{}"
        try:
            body = json.dumps(
                Braces(body, *self.marks(self.quote)).read(), ensure_ascii=False, allow_nan=False
            )
        except (ValueError, IndexError, RecursionError):
            pass  # passed on as it is
        self.start_call(name)
        self.add_arguments(body)
        self.end_call()


class Braces:
    """Reads a value of the notation. Raises ValueError or IndexError if it is malformed."""

    def __init__(self, text: str, quote: str) -> None:
        self.text, self.quote, self.at = text, quote, 0

    def read(self) -> Any:
        """The value, which is the whole text."""
        value = self.value()
        if self.text[self.at :].strip():
            raise ValueError("text behind the value")
        return value

    def value(self) -> Any:
        """The next value."""
        self.skip()
        if self.text.startswith(self.quote, self.at):
            return self.string()
        if self.text[self.at] == "{":
            return dict(self.items("}", self.pair))
        if self.text[self.at] == "[":
            return self.items("]", self.value)
        return self.scalar()

    def items(self, end: str, read: Any) -> list[Any]:
        """The items up to a bracket."""
        found = list[Any]()
        self.at += 1
        while True:
            self.skip(" \t\r\n,")
            if self.text[self.at] == end:
                self.at += 1
                return found
            found.append(read())

    def pair(self) -> tuple[str, Any]:
        """The next key and its value."""
        if self.text.startswith(self.quote, self.at):
            key = self.string()
        else:
            end = self.text.index(":", self.at)
            key, self.at = self.text[self.at : end].strip(), end
        self.skip()
        if self.text[self.at] != ":":
            raise ValueError("a key without a value")
        self.at += 1
        return key, self.value()

    def string(self) -> str:
        """The text up to the next quote."""
        begin = self.at + len(self.quote)
        end = self.text.index(self.quote, begin)
        self.at = end + len(self.quote)
        return self.text[begin:end]

    def scalar(self) -> Any:
        """A number or a word. NaN and Infinity, which are not JSON, are texts."""
        begin = self.at
        while self.text[self.at] not in ",}] \t\r\n":
            self.at += 1
        text = self.text[begin : self.at]
        return WORDS[text] if text in WORDS else json.loads(text, parse_constant=str)

    def skip(self, characters: str = " \t\r\n") -> None:
        """Consume these characters."""
        while self.text[self.at] in characters:
            self.at += 1
