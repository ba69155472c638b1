"""Calls in braces between control tokens."""

from __future__ import annotations

from ostro.plugins.parsers.brace_calls import BraceParser


class Gemma4Parser(BraceParser):
    """Reasoning is the channel `thought`."""

    reasoning = ("<|channel>thought", "<channel|>")
    begins = ("<|tool_call>",)
    ends = ("<tool_call|>",)
    quote = '<|"|>'
