"""Calls as JSON, with or without tags."""

from __future__ import annotations

from ostro.plugins.parsers.json_calls import JsonParser


class FallbackParser(JsonParser):
    """One object between <tool_call> tags, or a call of an offered tool as the whole answer."""

    begins = ("<tool_call>",)
    ends = ("</tool_call>",)
    around = ("\n", "\n")
    between = ""
    bare = True
