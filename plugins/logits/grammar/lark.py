"""Grammars in Lark's syntax: the options of llguidance that ostro cannot honour."""

from __future__ import annotations

import re

from ostro.errors import RequestError

QUOTED = re.compile(
    r'"(?:\\.|[^"\\\n])*"'  # a text
    r"|/(?![/*])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/"  # a regular expression
    r"|(?://|\#)[^\n]*"  # a comment
)
OPTION = re.compile(r"\[[^\[\]]*\b(stop|max_tokens|temperature)\s*=[^\[\]]*\]")
REASONS = {
    "stop": "its text would be removed from the answer; use suffix or lazy",
    "max_tokens": "limit the repetitions of the terminal",
    "temperature": "set the temperature of the request",
}


def check_lark(text: str) -> None:
    """Raise RequestError for an option of a rule that ostro does not honour."""
    bare = QUOTED.sub(" ", text)
    if found := OPTION.search(bare):
        name = found[1]
        raise RequestError(f"lark: the option {name!r} is not supported; {REASONS[name]}")
