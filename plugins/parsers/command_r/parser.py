"""Calls as a JSON list in a code block."""

from __future__ import annotations

from ostro.plugins.parsers.json_calls import JsonParser


class CommandRParser(JsonParser):
    """A list in a code block. The tool `directly-answer` stands for no call."""

    reasoning = None
    begins = ("Action:\n```json",)
    ends = ("```",)
    names = "tool_name"
    arguments = "parameters"
