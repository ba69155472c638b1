"""Calls as a list of calls in Python."""

from __future__ import annotations

from ostro.plugins.parsers.python_calls import PythonParser


class Llama4Parser(PythonParser):
    """A list in brackets; without the marker, of offered tools only."""

    reasoning = None
    begins = ("<|python_start|>",)
    ends = ("<|python_end|>",)
    bare = True
