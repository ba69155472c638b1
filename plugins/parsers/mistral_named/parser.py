"""Calls as a name, an optional id and JSON."""

from __future__ import annotations

from ostro.plugins.parsers.mistral.parser import new_mistral_id
from ostro.plugins.parsers.section_calls import SectionParser


class MistralNamedParser(SectionParser):
    """Each call begins with [TOOL_CALLS]; the id is optional."""

    reasoning = ("[THINK]", "[/THINK]")
    begins = ("[TOOL_CALLS]",)
    call = ("[TOOL_CALLS]", "")
    separators = (("[CALL_ID]", "id"), ("[ARGS]", "arguments"))

    def new_id(self) -> str:
        """An id that the templates accept."""
        return new_mistral_id()
