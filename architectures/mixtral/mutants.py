"""Mutants of mixtral: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from ostro import Mutant, nn
from ostro.nn import Float32Router, Router
from ostro.testing import each

Choice = tuple[Tensor, Tensor]


def rerouted(change: Callable[[Tensor, Tensor, int], Choice]) -> Callable[[nn.Model], None]:
    """Change the experts [T, k] that routers choose, and their weights [T, k]."""

    def spoil(router: Router | Float32Router) -> None:
        choose = router.choose
        router.choose = lambda x, step: change(*choose(x, step), router.n_out)  # type: ignore[method-assign]

    def apply(model: nn.Model) -> None:
        for module in model.modules():
            if isinstance(module, Router | Float32Router):
                spoil(module)

    return apply


def gate_and_up(model: nn.Model) -> None:
    def swap(experts: nn.Experts) -> None:
        half, activate = experts.gate_up.n_out // 2, experts.activate
        experts.activate = lambda gate_up: activate(gate_up.roll(half, -1))  # type: ignore[method-assign]

    each(model, nn.Experts, swap)


def experts() -> Iterator[Mutant]:
    """Mutants of families with a mixture of experts, besides the generic ones."""
    yield Mutant(name="weights in another order", apply=rerouted(lambda c, w, n: (c, w.flip(-1))))
    yield Mutant(name="weights all one", apply=rerouted(lambda c, w, n: (c, w * 0 + 1)))
    yield Mutant(name="experts off by one", apply=rerouted(lambda c, w, n: ((c + 1) % n, w)))
    yield Mutant(name="gate and up of the experts exchanged", apply=gate_and_up)


def mutants() -> Iterator[Mutant]:
    yield from experts()
