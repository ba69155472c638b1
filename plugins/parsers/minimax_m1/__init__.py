"""The notation of MiniMax M1 and Hunyuan: JSON objects between <tool_calls> tags."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "<tool_calls>" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(
        name="minimax_m1",
        matches=matches,
        parser=f"{__name__}.parser:MiniMaxM1Parser",
        precedence=-1,
    )
