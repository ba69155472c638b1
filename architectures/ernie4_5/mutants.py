"""Mutants of ernie4_5: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.testing import each


def attention_biases_alone(model: nn.Model) -> None:
    def drop(mlp: nn.GatedMLP) -> None:
        mlp.gate_up.bias = mlp.down_proj.bias = None

    each(model, nn.GatedMLP, drop)


def no_output_bias(model: nn.Model) -> None:
    each(model, nn.Attention, lambda attention: setattr(attention.o_proj, "bias", None))


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="no biases in the MLP", apply=attention_biases_alone)
    yield Mutant(name="no bias on the attention's output", apply=no_output_bias)
