"""Mutants of hunyuan_v1_moe: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.architectures.deepseek_v2.mutants import set_rule
from ostro.architectures.hunyuan_v1_dense.mutants import mutants as dense
from ostro.architectures.hunyuan_v1_moe.model import Mixture
from ostro.architectures.mixtral.mutants import experts
from ostro.testing import each


def no_shared_mlp(model: nn.Model) -> None:
    def drop(mixture: Mixture) -> None:
        mixture.shared_mlp.forward = lambda x, step: x * 0  # type: ignore[method-assign]

    each(model, Mixture, drop)


def mutants() -> Iterator[Mutant]:
    yield from dense()
    yield from experts()
    yield Mutant(name="no shared MLP", apply=no_shared_mlp)
    yield set_rule(renormalise=False)
    yield set_rule(top=3)
