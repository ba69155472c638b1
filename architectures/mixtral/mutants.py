"""Bugs that the parity test of mixtral must notice; those of experts are for all their families."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from ostro import Mutant, nn
from ostro.core.nn.experts import Router
from ostro.core.testing.mutants import decoder, each

DENSE = ("another activation", "gate and up exchanged")
Choice = tuple[Tensor, Tensor]


def rerouted(change: Callable[[Tensor, Tensor, int], Choice]) -> Callable[[nn.Model], None]:
    """Change what every router chose of n experts: which and with what weights, [T, k]."""

    def spoil(router: Router) -> None:
        choose = router.choose
        router.choose = lambda x, step: change(*choose(x, step), router.n_out)  # type: ignore[method-assign]

    return lambda model: each(model, Router, spoil)


def other_softmax(model: nn.Model) -> None:
    each(model, Router, lambda r: setattr(r, "renormalise", not r.renormalise))


def one_fewer(model: nn.Model) -> None:
    each(model, Router, lambda r: setattr(r, "top", r.top - 1))


def one_more(model: nn.Model) -> None:
    each(model, Router, lambda r: setattr(r, "top", r.top + 1))


def activation(model: nn.Model) -> None:
    each(model, nn.Experts, lambda e: setattr(e, "act", "gelu" if e.act == "silu" else "silu"))


def gate_and_up(model: nn.Model) -> None:
    def swap(experts: nn.Experts) -> None:
        half, activate = experts.gate_up.n_out // 2, experts.activate
        experts.activate = lambda gate_up: activate(gate_up.roll(half, -1))  # type: ignore[method-assign]

    each(model, nn.Experts, swap)


def experts() -> Iterator[Mutant]:
    """The bugs of families with a mixture of experts."""
    yield Mutant(name="softmax over all experts instead of the chosen", apply=other_softmax)
    yield Mutant(name="one expert fewer", apply=one_fewer)
    yield Mutant(name="one expert more", apply=one_more)
    yield Mutant(name="weights in another order", apply=rerouted(lambda c, w, n: (c, w.flip(-1))))
    yield Mutant(name="weights all one", apply=rerouted(lambda c, w, n: (c, w * 0 + 1)))
    yield Mutant(name="experts off by one", apply=rerouted(lambda c, w, n: ((c + 1) % n, w)))
    yield Mutant(name="another activation of the experts", apply=activation)
    yield Mutant(name="gate and up of the experts exchanged", apply=gate_and_up)


def mutants() -> Iterator[Mutant]:
    yield from (mutant for mutant in decoder() if mutant.name not in DENSE)
    yield from experts()
