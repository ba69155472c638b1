"""Budgets of reasoning: after a number of tokens, the model has to end its reasoning."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import LogitsProcessor, hookimpl


@hookimpl
def ostro_logits_processors() -> Iterator[LogitsProcessor]:
    """Yield the logits processor "reasoning_budget"."""
    yield LogitsProcessor(
        name="reasoning_budget",
        processor=f"{__name__}.processor:ReasoningBudget",
        order=1000,
        mask=True,
    )
