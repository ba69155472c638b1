"""Calls as Python writes them: a list of calls with keyword arguments."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from typing import Any

from ostro.errors import Unsupported
from ostro.pipelines import Tool
from ostro.plugins.parsers.lark import Rules, ordered, parameters_of, quoted
from ostro.plugins.parsers.turn import Reader, TurnParser

WORDS = {"true": True, "false": False, "null": None}
"""Words of JSON, which models write for those of Python."""


class PythonParser(TurnParser):
    """A notation with calls of Python. A call is held back until its arguments are complete.

    ends  markers that end calls; () if they end with the output
    bare  calls of offered tools may be the whole answer, without a marker
    """

    ends: tuple[str, ...] = ()
    bare = False

    @classmethod
    def write_begin(cls, rules: Rules, exact: bool) -> str:
        """The marker that begins calls. Without one, a text may look like a call."""
        if not exact and cls.bare:
            raise Unsupported(
                "strict tools and formats: the notation of this model has calls without a marker; "
                "use tool_choice",
                param="tools",
            )
        return "" if cls.bare else rules.text(cls.begins[0])

    @classmethod
    def write_calls(cls, rules: Rules, tools: Sequence[Tool], exact: bool, parallel: bool) -> str:
        """A list of calls, with arguments in the order of the schema and JSON as values."""
        one = rules.either(cls.write_call(rules, tool) for tool in tools)
        more = f'(", " {one})*' if parallel else ""
        end = rules.text(cls.ends[0]) if cls.ends and not cls.bare else ""
        return f'"[" {one} {more} "]" {end}'

    @classmethod
    def write_call(cls, rules: Rules, tool: Tool) -> str:
        """A call of a tool."""
        arguments = [
            (rules.rule(f"{quoted(f'{name}=')} {rules.value(tool, schema)}"), required)
            for name, schema, required in parameters_of(tool)
        ]
        return f'{quoted(f"{tool.name}(")} {ordered(arguments, quoted(", "))} ")"'

    def read_start(self) -> Reader[str]:
        """Read calls without a marker."""
        if self.bare:
            yield from self.read_unmarked("[", lambda: self.read_list("", ()))
        return ""

    def read_calls(self, marker: str) -> Reader[None]:
        """Read calls up to the marker of their end."""
        yield from self.read_list(marker, self.marks(*self.ends))

    def read_list(self, marker: str, ends: Sequence[str]) -> Reader[None]:
        """Read calls, in brackets or not. What is not a call is text, with its marker."""
        text = marker
        while True:
            text += yield from self.skip(" \t\r\n,;[")
            end = yield from self.starts(ends)
            if end:
                break
            if self.held.startswith("]"):
                text += self.take(1)
                text += yield from self.skip(" \t\r\n")
                end = yield from self.starts(ends)
                break
            call = yield from self.read_call(known=not marker)
            if call is None:
                self.write(text)
                return
            name, arguments = call
            self.start_call(name)
            self.add_arguments(json.dumps(arguments, ensure_ascii=False))
            self.end_call()
            text = ""
        if text.strip("] \t\r\n") or (text and not self.calls):
            self.write(text + end)

    def read_call(self, *, known: bool) -> Reader[tuple[str, dict[str, Any]] | None]:
        """Consume one call. None if there is none; then what was read stays in `held`.

        known: it must be one of an offered tool.
        """
        scanner, size, opened = PythonScanner(), 0, -1
        while True:
            for at, letter in enumerate(self.held[size:], size):
                if opened < 0 and letter == "(":
                    opened = at
                elif opened < 0 and not (letter.isalnum() or letter in "_.-"):
                    return None
                if opened >= 0 and scanner.closes(letter):
                    return self.converted(opened, at, known=known)
            name = self.held[:opened] if opened >= 0 else ""
            if self.ended or (known and opened >= 0 and name not in self.tools):
                return None
            size = len(self.held)
            yield

    def converted(
        self, opened: int, closed: int, *, known: bool
    ) -> tuple[str, dict[str, Any]] | None:
        """Consume a call in parentheses; None if it is none."""
        name = self.held[:opened]
        tool = self.tools.get(name)
        if not name or (known and tool is None):
            return None
        properties = tool.parameters.get("properties") if tool else None
        arguments = arguments_of(self.held[opened : closed + 1], list(properties or ()))
        if arguments is not None:
            self.take(closed + 1)
        return None if arguments is None else (name, arguments)


class PythonScanner:
    """Finds the end of the parentheses that begin a text."""

    def __init__(self) -> None:
        self.depth, self.quote, self.escaped = 0, "", False

    def closes(self, letter: str) -> bool:
        """Whether the next character closes the first parenthesis."""
        if self.escaped:
            self.escaped = False
        elif self.quote:
            self.escaped = letter == "\\"
            self.quote = "" if letter == self.quote else self.quote
        elif letter in "\"'":
            self.quote = letter
        elif letter in "([{":
            self.depth += 1
        elif letter in ")]}":
            self.depth -= 1
            return self.depth == 0
        return False


def arguments_of(text: str, names: Sequence[str]) -> dict[str, Any] | None:
    """The arguments in parentheses, positional ones by `names`; None if they are no literals."""
    try:
        call = ast.parse(f"f{text}", mode="eval").body
        if not isinstance(call, ast.Call) or len(call.args) > len(names):
            return None
        found = {name: value_of(each) for name, each in zip(names, call.args, strict=False)}
        found |= {str(each.arg): value_of(each.value) for each in call.keywords if each.arg}
        json.dumps(found, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return None if any(each.arg is None for each in call.keywords) else found


def value_of(node: ast.expr) -> Any:
    """The value of a literal. Raises ValueError for another expression."""
    match node:
        case ast.Name(id) if id in WORDS:
            return WORDS[id]
        case ast.List(items) | ast.Tuple(items):
            return [value_of(each) for each in items]
        case ast.Dict(keys, values):
            pairs = zip(keys, values, strict=True)
            return {str(ast.literal_eval(key or node)): value_of(each) for key, each in pairs}
    return ast.literal_eval(node)
