"""The notation of DeepSeek V3.1: a name and JSON between control tokens."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "<｜tool▁sep｜>" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(
        name="deepseek_v31",
        matches=matches,
        parser=f"{__name__}.parser:DeepSeekV31Parser",
        precedence=-1,
    )
