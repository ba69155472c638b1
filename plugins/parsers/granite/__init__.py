"""The notation of Granite 3: a JSON list behind <|tool_call|>."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "<|tool_call|>" in source and "<|start_of_role|>" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(name="granite", matches=matches, parser=f"{__name__}.parser:GraniteParser")
