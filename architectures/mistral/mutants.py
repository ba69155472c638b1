"""Bugs that the parity test of mistral must notice."""

from collections.abc import Iterator

from ostro import Mutant
from ostro.core.testing.mutants import decoder, windowed


def mutants() -> Iterator[Mutant]:
    yield from decoder()
    yield from windowed()
