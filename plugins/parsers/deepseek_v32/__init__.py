"""The notation of DeepSeek V3.2: a tag per parameter, which states the type of its value."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "｜DSML｜" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(
        name="deepseek_v32", matches=matches, parser=f"{__name__}.parser:DeepSeekV32Parser"
    )
