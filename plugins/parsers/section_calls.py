"""Calls whose name, id and arguments are separated by markers, with the arguments as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from ostro.pipelines import Tool
from ostro.plugins.parsers.json_values import JsonReader
from ostro.plugins.parsers.lark import Rules, quoted
from ostro.plugins.parsers.turn import Reader


class SectionParser(JsonReader):
    """A notation with markers between the fields of a call.

    section     the markers around all calls; () without them: `call` begins one anywhere
    call        the markers around one call; the second is "" if the arguments end it
    first       the field behind the first marker: "name", "id" or "kind", which is ignored
    separators  the markers before the other fields, and these; the last one is "arguments"
    fence       what follows the arguments, and is ignored
    """

    section: tuple[str, ...] = ()
    call: tuple[str, str]
    first = "name"
    separators: tuple[tuple[str, str], ...]
    fence = ""

    @classmethod
    def write_calls(cls, rules: Rules, tools: Sequence[Tool], exact: bool, parallel: bool) -> str:
        """Calls with their fields, and the end of their section."""
        one = rules.either(cls.write_call(rules, tool, exact) for tool in tools)
        begin, end = rules.text(cls.call[0]), rules.text(cls.section[1] if cls.section else "")
        first = f"{begin} {one}" if cls.section else one
        return f"{first} {f'({begin} {one})*' if parallel else ''} {end}"

    @classmethod
    def write_call(cls, rules: Rules, tool: Tool, exact: bool) -> str:
        """The fields of a call of a tool, and its end."""
        parts = [cls.write_field(tool, cls.first)]
        for marker, field in cls.separators:
            if field == "id":
                continue  # optional where it is not the first field
            marker = f"\n{marker}\n" if cls.fence and field == "arguments" else marker
            parts.append(rules.text(marker))
            if field != "arguments":
                parts.append(cls.write_field(tool, field))
        behind = f"\n{cls.fence}{cls.call[1]}" if cls.fence else cls.call[1]
        return " ".join([*parts, rules.arguments(tool, exact), rules.text(behind)])

    @classmethod
    def write_field(cls, tool: Tool, field: str) -> str:
        """A field of a call."""
        return {"name": quoted(tool.name), "kind": '"function"'}.get(field, "/[A-Za-z0-9]{9}/")

    def read_calls(self, marker: str) -> Reader[None]:
        """Read one call, or those of a section."""
        begin, end = self.marks(*self.call)
        section = self.marks(*self.section)
        if marker not in section:
            yield from self.read_section_call(marker, [x for x in (end, begin) if x])
            return
        before = self.calls
        while (found := (yield from self.starts([begin, section[1]]))) == begin:
            if not (yield from self.read_section_call(begin, [end, section[1]])):
                return
        if self.calls == before:
            self.write(marker + found)

    def read_section_call(self, marker: str, ends: Sequence[str]) -> Reader[bool]:
        """Read the fields of a call and the marker of its end.

        Returns False if it is cut off or malformed; before its arguments it is text then, unless
        the name is that of an offered tool.
        """
        separators = {self.marks(marker)[0]: field for marker, field in self.separators}
        fields, field, text = {"name": "", "id": ""}, self.first, marker
        while field != "arguments":
            found: list[str] = []
            marker = yield from self.until([*separators, *ends], found.append)
            fields[field] = "".join(found)
            text += fields[field] + marker
            name, id = self.named(fields["name"].strip(), fields["id"].strip())
            if marker in ends and name in self.unconstrained:  # a call without arguments
                self.held = marker + self.held
                break
            if marker not in separators:
                self.write(text)
                return False
            field = separators[marker]
        self.start_call(name, id)
        complete = yield from self.read_arguments([*ends, self.fence] if self.fence else ends)
        self.end_call(complete=complete)
        if self.fence:
            yield from self.starts([self.fence])
        end = self.marks(self.call[1])
        return not end[0] or bool((yield from self.starts(end)))

    def named(self, name: str, id: str) -> tuple[str, str]:
        """The name and the id of a call from its fields."""
        return name, id
