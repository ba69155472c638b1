"""Bugs that the parity test of qwen3 must notice."""

from collections.abc import Iterator

from ostro import Mutant
from ostro.core.testing.mutants import decoder, no_head_norms


def mutants() -> Iterator[Mutant]:
    yield from decoder()
    yield Mutant(name="no norms on the heads", apply=no_head_norms)
