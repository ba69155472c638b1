"""Mutants of Arcee: porting bugs that its parity test must detect, besides the generic ones."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch.nn.functional import gelu, relu

from ostro import Mutant


def activation(change: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    """Replace the activation of every feed-forward."""

    def apply(model: Any) -> None:
        for layer in model.model.layers:
            layer.mlp.fused.kernel, layer.mlp.fused.on = change, True

    return apply


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="ReLU not squared", apply=activation(relu))
    yield Mutant(name="ReLU cubed", apply=activation(lambda x: relu(x) * x * x))
    yield Mutant(name="squared before the ReLU", apply=activation(lambda x: relu(x.square())))
    yield Mutant(name="GELU squared", apply=activation(lambda x: gelu(x).square()))
