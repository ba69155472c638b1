"""Mutants of granitemoe: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.architectures.granite.mutants import mutants as granite
from ostro.architectures.granitemoe.model import SharedMLP
from ostro.architectures.mixtral.mutants import experts
from ostro.testing import each


def no_shared_mlp(model: nn.Model) -> None:
    def drop(mlp: SharedMLP) -> None:
        mlp.shared_mlp.forward = lambda x, step: x * 0  # type: ignore[method-assign]

    each(model, SharedMLP, drop)


def mutants() -> Iterator[Mutant]:
    yield from granite()
    yield from experts()
    yield Mutant(name="no shared MLP", apply=no_shared_mlp)
