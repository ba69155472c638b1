"""Calls as a name and pairs of keys and values."""

from __future__ import annotations

from ostro.plugins.parsers.xml_calls import XmlParser


class Glm4Parser(XmlParser):
    """The name follows the tag of the call."""

    begins = ("<tool_call>",)
    function = ("", "")
    close = "</tool_call>"
    parameter = ("<arg_key>", "</arg_key>")
    opens = (("<arg_value>", ""),)
    value_end = "</arg_value>"
