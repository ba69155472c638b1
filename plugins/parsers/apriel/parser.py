"""Calls as a JSON list between <tool_calls> tags."""

from __future__ import annotations

from ostro.plugins.parsers.json_calls import JsonParser


class AprielParser(JsonParser):
    """A list between tags; the final answer is between markers behind the reasoning."""

    reasoning = ("<thinking>", "</thinking>")
    begins = ("<tool_calls>",)
    drops = ("[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]")
    ends = ("</tool_calls>",)
