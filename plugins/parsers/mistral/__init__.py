"""The notation of Mistral tokenizers up to v7: a JSON list behind [TOOL_CALLS]."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "[TOOL_CALLS]" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(
        name="mistral", matches=matches, parser=f"{__name__}.parser:MistralParser", precedence=-1
    )
