"""The notation of Qwen3-Coder, Qwen3.5 and Nemotron 3: a tag per parameter."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "<function=" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(
        name="qwen3_coder",
        matches=matches,
        parser=f"{__name__}.parser:Qwen3CoderParser",
        precedence=-1,
    )
