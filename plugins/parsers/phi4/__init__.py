"""The notation of Phi-4: a JSON list behind <|tool_call|> or "functools"."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "<|/tool_call|>" in source or "<|/tool|>" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(name="phi4", matches=matches, parser=f"{__name__}.parser:Phi4Parser")
