"""Calls as tags with names behind an equals sign."""

from __future__ import annotations

from ostro.plugins.parsers.xml_calls import XmlParser


class Qwen3CoderParser(XmlParser):
    """One function between each pair of tags, values on lines of their own."""

    begins = ("<tool_call>",)
    ends = ("</tool_call>",)
    function = ("<function=", ">")
    close = "</function>"
    parameter = ("<parameter=", ">")
    value_end = "</parameter>"
    lines = True
