"""Mutants of qwen3_vl_moe: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Mutant
from ostro.architectures.mixtral.mutants import experts
from ostro.architectures.qwen3_vl import mutants as qwen3_vl


def mutants() -> Iterator[Mutant]:
    yield from qwen3_vl.mutants()
    yield from experts()
