"""Bugs that the parity test of qwen3_moe must notice."""

from collections.abc import Iterator

from ostro import Mutant
from ostro.architectures.mixtral.mutants import experts
from ostro.core.testing.mutants import decoder, no_head_norms


def mutants() -> Iterator[Mutant]:
    yield from decoder()
    yield from experts()
    yield Mutant(name="no norms on the heads", apply=no_head_norms)
