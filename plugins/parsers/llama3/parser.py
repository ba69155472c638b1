"""Calls as JSON objects with "parameters"."""

from __future__ import annotations

from ostro.plugins.parsers.json_calls import JsonParser


class Llama3Parser(JsonParser):
    """Objects separated by semicolons; without the marker, of offered tools only."""

    reasoning = None
    begins = ("<|python_tag|>",)
    arguments = "parameters"
    bare = True
    around = ("", "")
    between = "; "
