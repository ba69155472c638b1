"""The notation of MiniMax M2: a tag per parameter."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "<minimax:tool_call>" in source or "minimax:tool_call" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(name="minimax_m2", matches=matches, parser=f"{__name__}.parser:MiniMaxM2Parser")
