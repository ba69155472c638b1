"""Mutants of qwen3_moe: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant
from ostro.architectures.mixtral.mutants import experts


def mutants() -> Iterator[Mutant]:
    yield from experts()
