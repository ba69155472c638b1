"""Calls as a name and pairs of keys and values."""

from __future__ import annotations

from ostro.plugins.parsers.xml_calls import XmlParser


class Hunyuan3Parser(XmlParser):
    """As that of GLM 4.5, with tags around all calls."""

    reasoning = ("<think:opensource>", "</think:opensource>")
    begins = ("<tool_calls:opensource>",)
    ends = ("</tool_calls:opensource>",)
    function = ("<tool_call:opensource>", "<tool_sep:opensource>")
    close = "</tool_call:opensource>"
    parameter = ("<arg_key:opensource>", "</arg_key:opensource>")
    opens = (("<arg_value:opensource>", ""),)
    value_end = "</arg_value:opensource>"
