"""Mutants of qwen2: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant
from ostro.testing import all_windows, no_bias


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="windows on the first layers too", apply=all_windows)
    yield Mutant(name="no biases on q, k, v", apply=no_bias)
