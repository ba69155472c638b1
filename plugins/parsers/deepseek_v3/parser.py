"""Calls as a name and a code block of JSON."""

from __future__ import annotations

from ostro.plugins.parsers.section_calls import SectionParser


class DeepSeekV3Parser(SectionParser):
    """Each call has a kind, which is "function"."""

    begins = ("<｜tool▁calls▁begin｜>",)
    section = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    call = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
    first = "kind"
    separators = (("<｜tool▁sep｜>", "name"), ("```json", "arguments"))
    fence = "```"
