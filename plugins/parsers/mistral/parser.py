"""Calls as a JSON list behind [TOOL_CALLS]."""

from __future__ import annotations

from secrets import choice
from string import ascii_letters, digits

from ostro.plugins.parsers.json_calls import JsonParser


def new_mistral_id() -> str:
    """An id as Mistral's templates require it: nine letters and digits."""
    return "".join(choice(ascii_letters + digits) for _ in range(9))


class MistralParser(JsonParser):
    """A list of objects with ids. The id follows the arguments, so that calls get new ones."""

    reasoning = ("[THINK]", "[/THINK]")
    begins = ("[TOOL_CALLS]",)
    ids = "id"

    def new_id(self) -> str:
        """An id that the templates accept."""
        return new_mistral_id()
