"""Mutants of qwen3_5_vl: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Mutant
from ostro.architectures.qwen3_5.mutants import mutants as text_mutants
from ostro.architectures.qwen3_5.mutants import sparse_mutants as sparse_text_mutants
from ostro.architectures.qwen3_vl.mutants import tower_mutants


def mutants() -> Iterator[Mutant]:
    yield from tower_mutants()
    yield from text_mutants()


def sparse_mutants() -> Iterator[Mutant]:
    yield from tower_mutants()
    yield from sparse_text_mutants()
