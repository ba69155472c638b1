"""Mutants of glm4_moe_lite: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant
from ostro.architectures.deepseek_v2.mutants import mutants as v2
from ostro.architectures.deepseek_v2.mutants import sigmoid_routed


def mutants() -> Iterator[Mutant]:
    yield from v2()
    yield from sigmoid_routed()
