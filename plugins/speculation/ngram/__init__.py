"""Prompt lookup: `--speculate ngram` proposes what followed the last tokens before."""

from collections.abc import Iterable

from ostro import Speculator, hookimpl


@hookimpl
def ostro_speculators() -> Iterable[Speculator]:
    yield Speculator(name="ngram", proposer=f"{__name__}.proposer:NgramProposer")
