"""The notation of Solar Open: messages with a kind, and calls between control tokens."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "<|tool_call:begin|>" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(name="solar", matches=matches, parser=f"{__name__}.parser:SolarParser")
