"""Structured output: tokens that a grammar forbids get no probability. Grammars by llguidance."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import LogitsProcessor, hookimpl


@hookimpl
def ostro_logits_processors() -> Iterator[LogitsProcessor]:
    """Yield the logits processor "grammar"."""
    # Last: processors that change logits must not raise those of forbidden tokens.
    yield LogitsProcessor(
        name="grammar", processor=f"{__name__}.processor:GrammarProcessor", order=1000, mask=True
    )
