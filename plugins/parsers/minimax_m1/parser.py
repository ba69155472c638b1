"""Calls as JSON objects between <tool_calls> tags."""

from __future__ import annotations

from ostro.plugins.parsers.json_calls import JsonParser


class MiniMaxM1Parser(JsonParser):
    """Objects on lines or in a list. Hunyuan writes answers between tags."""

    begins = ("<tool_calls>",)
    drops = ("<answer>", "</answer>")
    ends = ("</tool_calls>",)
    around = ("\n", "\n")
    between = "\n"
