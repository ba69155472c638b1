"""The notation of Hunyuan 3: pairs of keys and values, with suffixed tags."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "<arg_key{}>" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(name="hunyuan3", matches=matches, parser=f"{__name__}.parser:Hunyuan3Parser")
