"""Calls in braces between tags."""

from __future__ import annotations

from ostro.plugins.parsers.brace_calls import BraceParser


class FunctionGemmaParser(BraceParser):
    """There is no reasoning."""

    reasoning = None
    begins = ("<start_function_call>",)
    ends = ("<end_function_call>",)
    quote = "<escape>"
