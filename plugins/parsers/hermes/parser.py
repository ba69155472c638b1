"""Calls as JSON between <tool_call> tags."""

from __future__ import annotations

from ostro.plugins.parsers.json_calls import JsonParser


class HermesParser(JsonParser):
    """One object between each pair of tags; a template writes one pair per call."""

    begins = ("<tool_call>",)
    ends = ("</tool_call>",)
    around = ("\n", "\n")
    between = ""
