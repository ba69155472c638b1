"""The notation of Mistral tokenizers from v11: names and arguments behind [TOOL_CALLS]."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "[TOOL_CALLS]" in source and "[ARGS]" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(
        name="mistral_named", matches=matches, parser=f"{__name__}.parser:MistralNamedParser"
    )
