"""Grammars of calls, in llguidance's Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ostro.errors import RequestError, Unsupported
from ostro.pipelines import Grammar, Regex, Tool
from ostro.plugins.parsers.json_strings import in_json
from ostro.plugins.parsers.regular import code, expression_of, in_slashes

NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "additionalProperties": False}
MAX_SIZE = 1 << 18
"""The most characters of the expressions of all formats."""
DEFINITIONS = ("$defs", "definitions")
"""Keywords of JSON schemas whose entries parts of the schema refer to."""


class Rules:
    """The rules of a grammar. Control tokens of the vocabulary are written by their ids."""

    def __init__(self, controls: Mapping[str, int]) -> None:
        self.controls = controls
        self.lines = ["TEXT: /(?s:.*)/"]
        self.size = 0  # of the expressions of formats
        found = sorted(filter(None, controls), key=len, reverse=True)
        self._control = re.compile(f"({'|'.join(map(re.escape, found))})") if found else None

    def text(self, text: str) -> str:
        """A fixed text, which may contain control tokens."""
        parts = self._control.split(text) if self._control else [text]
        return " ".join(
            f"<[{self.controls[part]}]>" if part in self.controls else quoted(part)
            for part in parts
            if part
        )

    def rule(self, body: str, options: str = "") -> str:
        """A new rule. Returns its name."""
        name = f"part_{len(self.lines)}"
        self.lines.append(f"{name}{options}: {body}")
        return name

    def either(self, bodies: Iterable[str]) -> str:
        """A rule of alternatives."""
        return self.rule(" | ".join(bodies))

    def until(self, marker: str) -> str:
        """A rule of any text up to a marker, and the marker."""
        parts = self._control.split(marker) if self._control else [marker]
        if not parts[0]:
            return self.rule(f"TEXT {self.text(marker)}")
        head = self.rule(f"TEXT {quoted(parts[0])}", "[lazy]")
        return self.rule(f"{head} {self.text(marker.removeprefix(parts[0]))}")

    def json(self, schema: Any) -> str:
        """A rule of the JSON of a schema."""
        return self.rule(f"%json {json.dumps(schema)}")

    def text_of(self, form: Regex | Grammar, end: str) -> str:
        """A rule of the text of a tool's format up to a marker, and the marker.

        The text and the marker are one terminal where that is possible: it finds the end of a text
        that may contain the marker's first characters. A recursive grammar has its own terminals.
        """
        marker = self._control.split(end)[0] if self._control else end
        behind = self.text(end.removeprefix(marker))
        try:
            expression = expression_of_format(form)
        except (RequestError, Unsupported):  # llguidance states the faults of a malformed one
            if not isinstance(form, Grammar) or form.notation != "lark":
                raise
            inner = self.rule(f"%lark {{\n{form.text}\n}}")
            return self.rule(f"{inner} {self.text(end)}")
        head = self.terminal(f"(?:{expression}){code(marker)}", "[lazy]")
        return self.rule(f"{head} {behind}")

    def string_of(self, form: Regex | Grammar) -> str:
        """A rule of the JSON string of a tool's format. Raises Unsupported if it is recursive."""
        try:
            return self.terminal(f'"(?:{in_json(expression_of_format(form))})"')
        except Unsupported as error:
            raise Unsupported(
                f"{error}; the notation of this model's calls writes the text in JSON, which needs "
                "a format that is one regular expression"
            ) from None

    def terminal(self, expression: str, options: str = "") -> str:
        """A rule of one regular expression. Raises RequestError if all are too long."""
        self.size += len(expression)
        if self.size > MAX_SIZE:
            raise RequestError(
                f"the formats have more than {MAX_SIZE} characters as regular expressions",
                param="tools",
            )
        return self.rule(f"/{expression}/", options)

    def arguments(self, tool: Tool, exact: bool) -> str:
        """A rule of the arguments of a tool as JSON; see `schema_of`."""
        if tool.format is None:
            return self.json(schema_of(tool, exact))
        [(name, _, _)] = parameters_of(tool)
        head = quoted(f"{{{quoted(name)}: ")
        return self.rule(f'{head} {self.string_of(tool.format)} "}}"')

    def value(self, tool: Tool, schema: Any) -> str:
        """A rule of the JSON of a parameter of a tool."""
        return self.json(schema) if tool.format is None else self.string_of(tool.format)

    def grammar(self, start: str) -> str:
        """The grammar whose outputs are those of a rule."""
        return "\n".join([f"start: {start}", *self.lines])


def quoted(text: str) -> str:
    """A text as a literal."""
    return json.dumps(text, ensure_ascii=False)


def expression_of_format(form: Regex | Grammar) -> str:
    """The regular expression of a tool's format. Raises Unsupported for a recursive grammar."""
    if isinstance(form, Regex):
        return in_slashes(form.pattern)
    if form.notation != "lark":
        raise Unsupported(f"grammars in {form.notation} are not supported in tools; use lark")
    return expression_of(form.text)


def is_constrained(tool: Tool) -> bool:
    """Whether calls of a tool follow its schema or format even if no call is required."""
    return tool.strict or tool.format is not None


def schema_of(tool: Tool, exact: bool) -> Mapping[str, Any]:
    """The schema that arguments of a tool have to follow: its own, or any object.

    A tool without a schema has no parameters.
    """
    if not exact and not tool.strict:
        return {"type": "object"}
    return {**options_of(tool), **(tool.parameters or NO_PARAMETERS)}


def options_of(tool: Tool) -> dict[str, Any]:
    """The options of the schemas of a tool: only strict ones need a grammar of each keyword."""
    return {} if tool.strict else {"x-guidance": {"lenient": True}}


def parameters_of(tool: Tool) -> list[tuple[str, Any, bool]]:
    """The names and schemas of the parameters of a tool, and whether they are required."""
    properties = tool.parameters.get("properties") or {}
    required = tool.parameters.get("required") or ()
    shared = options_of(tool) | {
        name: tool.parameters[name] for name in DEFINITIONS if name in tool.parameters
    }
    return [
        (name, {**schema, **shared} if isinstance(schema, Mapping) else schema, name in required)
        for name, schema in properties.items()
    ]


def ordered(items: Sequence[tuple[str, bool]], between: str) -> str:
    """Items in order, the optional ones among them left out or not, with a text between them."""
    head = ""  # of the items from the current one on
    tail = ""  # the same, each behind the text between
    for item, required in reversed(items):
        rest = f"{item} {tail}".strip()
        if required:
            head = rest
            tail = f"{between} {rest}"
        else:
            head = f"({rest} | {head})" if head else f"({rest})?"
            tail = f"({between} {item})? {tail}".strip()
    return head
