"""The notation of LFM2: a list of calls in Python between control tokens."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "List of tools: " in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(name="lfm2", matches=matches, parser=f"{__name__}.parser:Lfm2Parser")
