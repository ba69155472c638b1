"""The notation of Llama 4: a list of calls in Python as the whole answer."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "<|python_start|>" in source or "<|header_start|>" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(name="llama4", matches=matches, parser=f"{__name__}.parser:Llama4Parser")
