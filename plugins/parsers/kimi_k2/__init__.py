"""The notation of Kimi K2: an id that contains the name, and JSON."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "<|tool_call_argument_begin|>" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(name="kimi_k2", matches=matches, parser=f"{__name__}.parser:KimiK2Parser")
