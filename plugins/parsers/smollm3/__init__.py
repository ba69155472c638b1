"""The notations of SmolLM3: JSON between <tool_call> tags, or Python between <code> tags."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "xml_tools" in source or "named SmolLM" in source


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(name="smollm3", matches=matches, parser=f"{__name__}.parser:SmolLM3Parser")
