"""Calls as an id with the name, and JSON."""

from __future__ import annotations

from ostro.pipelines import Tool
from ostro.plugins.parsers.lark import quoted
from ostro.plugins.parsers.section_calls import SectionParser


class KimiK2Parser(SectionParser):
    """The id is "functions.NAME:NUMBER"; results of tools refer to it."""

    begins = ("<|tool_calls_section_begin|>",)
    section = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
    call = ("<|tool_call_begin|>", "<|tool_call_end|>")
    first = "id"
    separators = (("<|tool_call_argument_begin|>", "arguments"),)

    @classmethod
    def write_field(cls, tool: Tool, field: str) -> str:
        """The id."""
        return f"{quoted(f'functions.{tool.name}:')} /[0-9]+/"

    def named(self, name: str, id: str) -> tuple[str, str]:
        """The name within the id, and the id."""
        return id.removeprefix("functions.").rpartition(":")[0] or id, id
