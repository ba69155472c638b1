"""The notation of DeepSeek V3 and R1: a name and fenced JSON between control tokens."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "<｜tool▁sep｜>" in source and "```json" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(name="deepseek_v3", matches=matches, parser=f"{__name__}.parser:DeepSeekV3Parser")
