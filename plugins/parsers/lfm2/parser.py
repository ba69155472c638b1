"""Calls as a list of calls in Python."""

from __future__ import annotations

from ostro.plugins.parsers.python_calls import PythonParser


class Lfm2Parser(PythonParser):
    """A list in brackets."""

    begins = ("<|tool_call_start|>",)
    ends = ("<|tool_call_end|>",)
