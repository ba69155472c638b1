"""Harmony, the notation of gpt-oss: messages in channels."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "<|channel|>" in source and "<|message|>" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(name="harmony", matches=matches, parser=f"{__name__}.parser:HarmonyParser")
