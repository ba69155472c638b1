"""Calls as JSON, or as a list of calls in Python."""

from __future__ import annotations

from ostro.plugins.parsers.json_calls import JsonParser
from ostro.plugins.parsers.python_calls import PythonParser
from ostro.plugins.parsers.turn import Reader


class SmolLM3Parser(JsonParser, PythonParser):
    """The marker decides between the notations."""

    begins = ("<tool_call>", "<code>")
    ends = ("</tool_call>", "</code>")
    around = ("\n", "\n")
    between = ""

    def read_calls(self, marker: str) -> Reader[None]:
        """Read objects of JSON or calls in Python."""
        reader = PythonParser if marker == self.marks("<code>")[0] else JsonParser
        yield from reader.read_calls(self, marker)
