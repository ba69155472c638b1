"""The notation of templates that no other parser matches: JSON, between tags or alone."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """No template: the text pipeline uses this parser where no other matches."""
    return False


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(name="generic", matches=matches, parser=f"{__name__}.parser:FallbackParser")
