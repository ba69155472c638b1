"""Mutants of gemma: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.architectures.gemma.model import Model
from ostro.testing import each


def no_embedding_scale(model: nn.Model) -> None:
    assert isinstance(model, Model)
    model.scale = 1.0


def silu(model: nn.Model) -> None:
    """Use SiLU in the MLP, as in Llama."""
    each(model, nn.GatedMLP, lambda mlp: setattr(mlp, "act", "silu"))


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="embeddings not scaled", apply=no_embedding_scale)
    yield Mutant(name="SiLU in the MLP", apply=silu)
