"""The notation of Command R7B and Command A: a JSON list between control tokens."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "<|START_ACTION|>" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(name="command_r7b", matches=matches, parser=f"{__name__}.parser:CommandR7BParser")
