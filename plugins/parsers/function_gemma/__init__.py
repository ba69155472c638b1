"""The notation of FunctionGemma: calls in braces between tags."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "<start_function_call>" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(
        name="function_gemma", matches=matches, parser=f"{__name__}.parser:FunctionGemmaParser"
    )
