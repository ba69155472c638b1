"""Calls as JSON objects with a name and arguments: between tags, behind a marker, or alone."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ostro.errors import Unsupported
from ostro.pipelines import Tool
from ostro.plugins.parsers.json_values import JsonReader
from ostro.plugins.parsers.lark import Rules, quoted
from ostro.plugins.parsers.turn import Reader

BETWEEN = " \t\r\n,;["
"""What may precede an object: white space, and what separates the objects of a list."""


class JsonParser(JsonReader):
    """A notation with calls as JSON objects.

    ends       markers that end calls; () if they end with the output
    names      the key of the name
    arguments  the key of the arguments
    ids        the key of the id; "" without one
    bare       a call may be the whole answer, without a marker
    around     what grammars write before and behind the objects
    between    what they write between objects; "" if each object has its own markers
    """

    ends: tuple[str, ...] = ()
    names = "name"
    arguments = "arguments"
    ids = ""
    bare = False
    around = ("[", "]")
    between = ", "

    @classmethod
    def write_begin(cls, rules: Rules, exact: bool) -> str:
        """The marker that begins calls. Without one, a text may look like a call."""
        if not exact and cls.bare:
            raise Unsupported(
                "strict tools and formats: the notation of this model has calls without a marker; "
                "use tool_choice",
                param="tools",
            )
        return "" if cls.bare and not cls.ends else rules.text(cls.begins[0])

    @classmethod
    def write_calls(cls, rules: Rules, tools: Sequence[Tool], exact: bool, parallel: bool) -> str:
        """Objects in the layout of the notation."""
        objects = rules.either(cls.write_object(rules, tool, exact) for tool in tools)
        first, last = (quoted(each) if each else "" for each in cls.around)
        end = rules.text(cls.ends[0]) if cls.ends else ""
        between, one = quoted(cls.between), objects
        if not cls.between:  # each call has its own markers
            one, between = f"{first} {objects} {last} {end}", f'"\\n" {rules.text(cls.begins[0])}'
            first = last = end = ""
        more = f"({between} {one})*" if parallel else ""
        return f"{first} {one} {more} {last} {end}"

    @classmethod
    def write_object(cls, rules: Rules, tool: Tool, exact: bool) -> str:
        """The object of a call of a tool."""
        head = f'{{"{cls.names}": {quoted(tool.name)}, "{cls.arguments}": '
        return f'{quoted(head)} {rules.arguments(tool, exact)} "}}"'

    def read_start(self) -> Reader[str]:
        """Read calls without a marker; of tools that the request offers, or they are text."""
        if self.bare:
            yield from self.read_unmarked("{", lambda: self.read_objects("", ()))
        return ""

    def read_calls(self, marker: str) -> Reader[None]:
        """Read one object or several, and the marker of their end."""
        yield from self.read_objects(marker, self.marks(*self.ends))

    def read_objects(self, marker: str, ends: Sequence[str]) -> Reader[None]:
        """Read objects up to one of the ends. What is not a call is text, with its marker."""
        before, text = self.calls, marker
        while True:
            text += yield from self.skip(BETWEEN)
            if self.held.startswith("{"):
                call = JsonCall(self, ends, strict=not marker)
                if not (yield from call.read(text)):
                    if call.started:
                        yield from self.starts(ends)
                    return
                text = ""
                continue
            end = yield from self.starts(ends)
            if end or not self.held.startswith("]"):
                break
            text += self.take(1)
        if self.calls == before:
            self.write(text + end)

    def read_scalar(self) -> Reader[str]:
        """Consume a number or a word of JSON."""
        found = ""
        while True:
            size = next((i for i, x in enumerate(self.held) if x in ",}] \t\r\n"), len(self.held))
            found += self.take(size)
            if self.held or self.ended:
                return found
            yield


class JsonCall:
    """Reads one call. strict: it is text unless it has the fields of a call and a known name."""

    def __init__(self, parser: JsonParser, ends: Sequence[str], strict: bool) -> None:
        self.parser, self.ends, self.strict = parser, ends, strict
        self.text, self.name, self.id = "", "", ""
        self.arguments: str | None = None
        self.started = False

    def read(self, before: str) -> Reader[bool]:
        """Read an object. False: the output ended within, or it was text, with what precedes it."""
        parser = self.parser
        self.text = before + parser.take(1)
        complete = yield from self.read_fields()
        if self.started:
            return complete
        if not complete or not self.name:
            parser.write(self.text)
            return False
        self.start()
        parser.add_arguments("{}" if self.arguments in (None, "null", "") else self.arguments)
        parser.end_call()
        return True

    def start(self) -> None:
        self.parser.start_call(self.name, self.id)
        self.started = True

    def note(self, text: str) -> None:
        """Remember text, which is written if this is not a call."""
        self.text += text

    def read_fields(self) -> Reader[bool]:
        """Read the fields up to the end of the object. Returns whether it was found."""
        parser = self.parser
        while True:
            self.text += yield from parser.skip(" \t\r\n,")
            if parser.held.startswith("}"):
                self.text += parser.take(1)
                return True
            key = yield from self.read_text()
            self.text += yield from parser.skip(" \t\r\n")
            known = (parser.names, parser.arguments, parser.ids, "type")
            if key is None or not parser.held.startswith(":") or (self.strict and key not in known):
                return False
            self.text += parser.take(1)
            self.text += yield from parser.skip(" \t\r\n")
            if not (yield from self.read_field(key)):
                return False

    def read_field(self, key: str) -> Reader[bool]:
        """Read the value of a field. Returns whether it is one."""
        parser = self.parser
        if key == parser.arguments and self.name and parser.held.startswith("{"):
            self.start()
            complete = yield from parser.read_value(parser.add_arguments, self.ends)
            parser.end_call(complete=complete)
            return complete
        before = len(self.text)
        if parser.held[:1] in ("{", "[", '"') and parser.held:
            complete = yield from parser.read_value(self.note, self.ends)
        else:
            self.text += yield from parser.read_scalar()
            complete = len(self.text) > before
        value = self.text[before:]
        if key == parser.names:
            self.name = decoded(value) or ""
            return complete and bool(self.name) and (not self.strict or self.name in parser.tools)
        if key == parser.arguments:
            text = decoded(value)
            self.arguments = value if text is None else text.strip()
        elif key == parser.ids:
            self.id = decoded(value) or value
        return complete

    def read_text(self) -> Reader[str | None]:
        """Read a string, None if it is none."""
        if not self.parser.held.startswith('"'):
            return None
        before = len(self.text)
        complete = yield from self.parser.read_value(self.note, self.ends)
        return decoded(self.text[before:]) if complete else None


def decoded(text: str) -> str | None:
    """The text of a JSON string; None for other JSON."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, str) else None
