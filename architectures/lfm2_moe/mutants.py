"""Mutants of lfm2_moe: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant
from ostro.architectures.deepseek_v2.mutants import set_rule, sigmoid_routed
from ostro.architectures.lfm2.mutants import mutants as lfm2
from ostro.architectures.mixtral.mutants import experts


def mutants() -> Iterator[Mutant]:
    yield from lfm2()
    yield from experts()
    yield from sigmoid_routed()
    yield set_rule(sigmoid=False)
    yield set_rule(factor=1.0)
    yield set_rule(top=2)
