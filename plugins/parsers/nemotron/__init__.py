"""The notation of Nemotron Nano v2: a JSON list between <TOOLCALL> tags."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "<TOOLCALL>" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(name="nemotron", matches=matches, parser=f"{__name__}.parser:NemotronParser")
