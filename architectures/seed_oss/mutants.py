"""Mutants of seed_oss: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.testing import each


def no_output_bias(model: nn.Model) -> None:
    each(model, nn.Attention, lambda attention: setattr(attention.o_proj, "bias", None))


def no_input_bias(model: nn.Model) -> None:
    each(model, nn.Attention, lambda attention: setattr(attention.qkv, "bias", None))


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="no bias on the attention's output", apply=no_output_bias)
    yield Mutant(name="no biases on q, k, v", apply=no_input_bias)
