"""Bugs that the parity test of llama must notice."""

from collections.abc import Iterator

from ostro import Mutant
from ostro.core.testing.mutants import decoder


def mutants() -> Iterator[Mutant]:
    yield from decoder()
