"""Calls as a JSON list behind a marker."""

from __future__ import annotations

from ostro.plugins.parsers.json_calls import JsonParser


class Phi4Parser(JsonParser):
    """A list between control tokens, or up to the end of the output."""

    begins = ("<|tool_call|>", "functools")
    ends = ("<|/tool_call|>",)
