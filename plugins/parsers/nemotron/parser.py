"""Calls as a JSON list between <TOOLCALL> tags."""

from __future__ import annotations

from ostro.plugins.parsers.json_calls import JsonParser


class NemotronParser(JsonParser):
    """A list between tags."""

    begins = ("<TOOLCALL>",)
    ends = ("</TOOLCALL>",)
