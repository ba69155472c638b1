"""Calls as a JSON list behind <|tool_call|>."""

from __future__ import annotations

from ostro.plugins.parsers.json_calls import JsonParser


class GraniteParser(JsonParser):
    """A list up to the end of the output. Answers after reasoning are between tags."""

    begins = ("<|tool_call|>",)
    drops = ("<response>", "</response>")
