"""Calls as tags with names as attributes."""

from __future__ import annotations

from ostro.plugins.parsers.xml_calls import XmlParser


class DeepSeekV32Parser(XmlParser):
    """Functions between tags, with names as attributes."""

    begins = ("<｜DSML｜function_calls>",)
    ends = ("</｜DSML｜function_calls>",)
    function = ('<｜DSML｜invoke name="', '">')
    close = "</｜DSML｜invoke>"
    parameter = ('<｜DSML｜parameter name="', '"')
    opens = (('string="true">', "string"), ('string="false">', "json"))
    value_end = "</｜DSML｜parameter>"
