"""The notation of Apriel: a JSON list between <tool_calls> tags."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "<tool_calls>" in source and "<thinking>" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(name="apriel", matches=matches, parser=f"{__name__}.parser:AprielParser")
