"""The notation of Hermes, Qwen 2.5 and 3, QwQ and Granite 4: JSON between <tool_call> tags."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Parser, hookimpl


def matches(source: str) -> bool:
    """Whether a chat template writes this notation."""
    return "<tool_call>" in source and '"arguments"' in source.replace("\\", "")


@hookimpl
def ostro_parsers() -> Iterator[Parser]:
    """Yield the parser."""
    yield Parser(
        name="hermes", matches=matches, parser=f"{__name__}.parser:HermesParser", precedence=-2
    )
