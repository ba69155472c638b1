"""Calls as tags with names behind an equals sign."""

from __future__ import annotations

from ostro.plugins.parsers.xml_calls import XmlParser


class SeedOssParser(XmlParser):
    """One function between each pair of tags, values in the lines of their tags."""

    reasoning = ("<seed:think>", "</seed:think>")
    begins = ("<seed:tool_call>",)
    ends = ("</seed:tool_call>",)
    function = ("<function=", ">")
    close = "</function>"
    parameter = ("<parameter=", ">")
    value_end = "</parameter>"
