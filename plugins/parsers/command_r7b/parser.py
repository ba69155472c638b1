"""Calls as a JSON list between control tokens."""

from __future__ import annotations

from ostro.plugins.parsers.json_calls import JsonParser


class CommandR7BParser(JsonParser):
    """A list; its ids count the calls of a conversation, so that calls get new ones."""

    reasoning = ("<|START_THINKING|>", "<|END_THINKING|>")
    begins = ("<|START_ACTION|>",)
    drops = ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
    ends = ("<|END_ACTION|>",)
    answer = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "")
    names = "tool_name"
    arguments = "parameters"
