"""The notation of Seed-OSS: a tag per parameter."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "<seed:tool_call>" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(name="seed_oss", matches=matches, parser=f"{__name__}.parser:SeedOssParser")
