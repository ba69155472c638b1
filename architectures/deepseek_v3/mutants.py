"""Mutants of DeepSeek-V3: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.architectures.deepseek_v2.mutants import mutants as v2
from ostro.architectures.deepseek_v2.mutants import set_rule
from ostro.testing import each


def no_bias(model: nn.Model) -> None:
    each(model, nn.Float32Router, lambda router: setattr(router, "e_score_correction_bias", None))


def mutants() -> Iterator[Mutant]:
    yield from v2()
    yield Mutant(name="no bias in the selection", apply=no_bias)
    yield set_rule(renormalise=False)
