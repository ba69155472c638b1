"""The notation of Command R+: a fenced JSON list behind "Action:"."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "Action:" in source and '"tool_name"' in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(
        name="command_r", matches=matches, parser=f"{__name__}.parser:CommandRParser", precedence=-1
    )
