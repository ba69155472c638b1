"""The notation of Gemma 4: calls in braces between control tokens."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "<|tool_call>" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(name="gemma4", matches=matches, parser=f"{__name__}.parser:Gemma4Parser")
