"""Calls as an id, a name and JSON between control tokens."""

from __future__ import annotations

from ostro.plugins.parsers.section_calls import SectionParser


class SolarParser(SectionParser):
    """Reasoning, text and calls are messages; each begins with a header."""

    reasoning = ("<|think|>", "<|end|>")
    begins = ("<|tool_calls|>",)
    drops = ("<|begin|>assistant", "<|content|>", "<|end|>")
    section = ("<|tool_calls|>", "<|calls|>")
    call = ("<|tool_call:begin|>", "<|tool_call:end|>")
    first = "id"
    answer = ("<|content|>", "<|end|>", "<|begin|>assistant")
    after_reasoning = "<|begin|>assistant"
    separators = (("<|tool_call:name|>", "name"), ("<|tool_call:args|>", "arguments"))
