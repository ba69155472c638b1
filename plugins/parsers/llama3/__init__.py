"""The notation of Llama 3: a JSON object as the whole answer, or behind <|python_tag|>."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return '"parameters"' in source and "Environment: ipython" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(name="llama3", matches=matches, parser=f"{__name__}.parser:Llama3Parser")
