"""Calls as tags with names as attributes."""

from __future__ import annotations

from ostro.plugins.parsers.xml_calls import XmlParser


class MiniMaxM2Parser(XmlParser):
    """Functions between tags, with names as attributes."""

    begins = ("<minimax:tool_call>",)
    ends = ("</minimax:tool_call>",)
    function = ('<invoke name="', '">')
    close = "</invoke>"
    parameter = ('<parameter name="', '">')
    value_end = "</parameter>"
