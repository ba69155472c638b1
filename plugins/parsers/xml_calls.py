"""Calls as tags with one tag per parameter, whose values are text or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ostro.pipelines import Tool
from ostro.plugins.parsers.lark import Rules, parameters_of, quoted
from ostro.plugins.parsers.tagged_values import Kinds, has_to_be_text, json_of, kinds_of, texts_of
from ostro.plugins.parsers.turn import Reader, TurnParser


class XmlParser(TurnParser):
    """A notation with tags.

    Models leave some out. A function without the marker before it is a call of an offered tool that
    is not strict. A value without its tag ends before the line of the next parameter of the tool,
    and at the end of the function if only calls follow that.

    ends       the markers behind all calls that `begins` begin
    function   the tags around the name of a function; the first is "" if `begins` precede the name
    close      the tag behind a function
    parameter  the tags around the name of a parameter
    opens      the tags before a value, and its type: "string", "json", or "" for the schema's
    value_end  the tag behind a value
    lines      values are on lines of their own
    """

    ends: tuple[str, ...] = ()
    function: tuple[str, str]
    close: str
    parameter: tuple[str, str]
    opens: tuple[tuple[str, str], ...] = ()
    value_end: str
    lines = False

    @classmethod
    def write_calls(cls, rules: Rules, tools: Sequence[Tool], exact: bool, parallel: bool) -> str:
        """Functions, each with its parameters in the order of the schema."""
        one = rules.either(cls.write_function(rules, tool) for tool in tools)
        ends = rules.text(cls.ends[0]) if cls.ends else ""
        several = cls.ends and not cls.lines  # between one pair of tags
        line = '"\\n"' if cls.function[0] else ""
        if several:
            more = f'("\\n" {one})*' if parallel else ""
            return f'{line} {one} {more} "\\n" {ends}'
        behind = f'"\\n" {ends}' if ends else ""
        more = f'("\\n" {rules.text(cls.begins[0])} {line} {one} {behind})*' if parallel else ""
        return f"{line} {one} {behind} {more}"

    @classmethod
    def write_function(cls, rules: Rules, tool: Tool) -> str:
        """A function with its parameters."""
        head = f"{cls.function[0]}{tool.name}{cls.function[1]}\n"
        parameters = [
            rules.rule(cls.write_parameter(rules, tool, name, schema)) + ("" if required else "?")
            for name, schema, required in parameters_of(tool)
        ]
        return " ".join([rules.text(head), *parameters, rules.text(cls.close)])

    @classmethod
    def write_parameter(cls, rules: Rules, tool: Tool, name: str, schema: Any) -> str:
        """A parameter with its value: text, or JSON of its schema."""
        allowed = kinds_of(schema, tool.parameters)
        text = has_to_be_text(allowed)
        kinds = dict((kind, tag) for tag, kind in cls.opens)
        opened = kinds.get("string" if text else "json", kinds.get("", ""))
        space = "\n" if opened and "" in kinds else " " if opened else ""
        line = "\n" if cls.lines else ""
        head = f"{cls.parameter[0]}{name}{cls.parameter[1]}{space}{opened}{line}"
        behind = f"{line}{cls.value_end}"
        if tool.format is not None:
            value = rules.text_of(tool.format, behind)
        elif text and (texts := texts_of(allowed)):
            value = f"({' | '.join(map(quoted, texts))}) {rules.text(behind)}"
        elif text:
            value = rules.until(behind)
        else:
            value = f"{rules.json(schema)} {rules.text(behind)}"
        return f'{rules.text(head)} {value} "\\n"'

    def call_marks(self) -> Sequence[str]:
        """The markers that begin calls, and the tag before the name of a function."""
        marks = super().call_marks()
        return [*marks, *self.marks(self.function[0])] if marks and self.function[0] else marks

    def read_calls(self, marker: str) -> Reader[None]:
        """Read the functions behind a marker, and the marker of their end."""
        begin = self.function[0]
        if not begin:
            yield from self.read_function(marker)
            return
        text, ends = marker, self.marks(*self.ends)
        if marker in self.marks(begin):
            if not (yield from self.read_function(marker, bare=True)):
                return
            text = ""
        while (found := (yield from self.starts([*self.marks(begin), *ends]))) not in ("", *ends):
            if not (yield from self.read_function(text + found)):
                return
            text = ""
        if text:
            self.write(text + found)

    def read_function(self, text: str, *, bare: bool = False) -> Reader[bool]:
        """Read a function behind the tag before its name. Returns whether it is complete.

        Before its name is known it is text. bare: without a marker before it, it is text, too,
        unless it is one of an offered tool and a parameter or its end follows.
        """
        names: list[str] = []
        end, parameter, close = self.marks(self.function[1], self.parameter[0], self.close)
        stops = [close, *self.marks(*self.ends)]
        marks = [x for x in (end, parameter, *stops) if x]
        found = yield from self.until(marks, names.append, exact=True)
        name = "".join(names).strip()
        if not found or not name or (bare and (found != end or name not in self.unconstrained)):
            self.write(text + "".join(names) + found)
            return False
        if found == end:
            found = yield from self.starts([parameter, *stops])
            if bare and found not in (parameter, close):
                self.write(text + "".join(names) + end + found)
                return False
        self.start_call(name)
        self.add_arguments("{")
        complete = yield from self.read_parameters(name, found, parameter, stops)
        self.end_call(complete=complete)
        return complete

    def read_parameters(
        self, name: str, found: str, parameter: str, stops: list[str]
    ) -> Reader[bool]:
        """Read parameters and the end of the function. Returns whether it was found."""
        comma, others = "", self.parameters_of(name)
        while found == parameter:
            keys: list[str] = []
            yield from self.until(self.marks(self.parameter[1]), keys.append)
            if self.ended and not self.held:
                return False
            key = "".join(keys).strip()
            self.add_arguments(f"{comma}{json.dumps(key, ensure_ascii=False)}: ")
            others.discard(key)
            allowed = self.kinds_of_parameter(name, key)
            if not (yield from self.read_parameter(allowed, others)):
                return False
            comma = ", "
            found = yield from self.starts([parameter, *stops])
        self.add_arguments("}")
        return found in stops

    def parameters_of(self, name: str) -> set[str]:
        """The names of the parameters of a tool."""
        tool = self.tools.get(name)
        properties = tool.parameters.get("properties") if tool else None
        return {*properties} if isinstance(properties, Mapping) else set()

    def kinds_of_parameter(self, name: str, key: str) -> Kinds:
        """What the value of a parameter may be by the schema of its tool."""
        schema = self.tools[name].parameters if name in self.tools else {}
        properties = schema.get("properties")
        others = schema.get("additionalProperties")
        if isinstance(properties, Mapping):
            return kinds_of(properties.get(key, others), schema)
        return kinds_of(others, schema)

    def read_parameter(self, allowed: Kinds, others: Collection[str]) -> Reader[bool]:
        """Read a value and its end. Returns whether that was found.

        others: the parameters that may follow.
        """
        kinds = {self.marks(tag)[0]: kind for tag, kind in self.opens}
        kind = kinds.get((yield from self.starts([*kinds])), "")
        ends = self.marks(*([f"\n{self.value_end}"] if self.lines else []), self.value_end)
        if self.lines:
            while not self.held and not self.ended:
                yield
            self.take(self.held.startswith("\n"))
        if kind == "string" or (not kind and has_to_be_text(allowed)):
            self.add_arguments('"')
            complete = yield from self.read_value(ends, self.add_text, others)
            self.add_arguments('"' if complete else "")
            return complete
        pieces: list[str] = []
        complete = yield from self.read_value(ends, pieces.append, others)
        self.add_arguments(json_of("".join(pieces), allowed))
        return complete

    def read_value(
        self, ends: Sequence[str], emit: Callable[[str], None], others: Collection[str]
    ) -> Reader[bool]:
        """Emit a value up to the tag behind it, or up to another one that ends it.

        Returns whether an end was found.
        """
        parameter, close = (f"\n{tag}" for tag in self.marks(self.parameter[0], self.close))
        while True:
            found = yield from self.until([*ends, parameter, close], emit, exact=True)
            if found == parameter:
                ended = yield from self.names_parameter(others)
            elif found == close:
                ended = yield from self.precedes_calls()
            else:
                return bool(found)
            if ended:
                self.held = found + self.held
                return True
            emit(found)

    def names_parameter(self, others: Collection[str]) -> Reader[bool]:
        """Whether the name of one of these parameters is next, and the tag behind it."""
        (end,) = self.marks(self.parameter[1])
        heads = [f"{name}{end}" + ("\n" if self.lines else "") for name in others]
        while not any(self.held.startswith(head) for head in heads):
            if self.ended or not any(head.startswith(self.held) for head in heads):
                return False
            yield
        return True

    def precedes_calls(self) -> Reader[bool]:
        """Whether only the markers of calls are next, up to the end of the output or a function."""
        ends, begins = self.marks(*self.ends), self.marks(*self.begins)
        function = self.marks(self.function[0] or self.begins[0])[0]
        marks = [*ends, *begins, function]
        heads = [f"{function}{name}" for name in self.tools]
        while True:
            rest = self.held.lstrip()
            for mark in [*ends, *begins] if self.function[0] else ends:
                rest = rest.removeprefix(mark).lstrip()
            if any(rest.startswith(head) for head in heads):
                return True
            if self.ended or not any(text.startswith(rest) for text in [*marks, *heads]):
                return not rest
            yield

    def add_text(self, text: str) -> None:
        """Emit a piece of a JSON string in the arguments."""
        self.add_arguments(json.dumps(text, ensure_ascii=False)[1:-1])
