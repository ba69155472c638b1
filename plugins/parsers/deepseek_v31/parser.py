"""Calls as a name and JSON."""

from __future__ import annotations

from ostro.plugins.parsers.section_calls import SectionParser


class DeepSeekV31Parser(SectionParser):
    """A name and arguments, without a kind."""

    begins = ("<｜tool▁calls▁begin｜>",)
    section = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    call = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
    separators = (("<｜tool▁sep｜>", "arguments"),)
