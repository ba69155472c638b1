"""Mutants of olmoe and flex_olmo: porting bugs that their parity tests must detect."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.architectures.mixtral.mutants import experts
from ostro.architectures.olmo2.mutants import mutants as olmo2
from ostro.architectures.olmo2.mutants import norm_of_each_head
from ostro.architectures.olmoe.model import ClippedAttention, ClippedNorm
from ostro.testing import SMALL, each


def no_clip_of_values(model: nn.Model) -> None:
    each(model, ClippedAttention, lambda attention: setattr(attention, "limit", math.inf))


def no_clip_of_queries(model: nn.Model) -> None:
    each(model, ClippedNorm, lambda norm: setattr(norm, "limit", math.inf))


def other_softmax(model: nn.Model) -> None:
    """Renormalise the weights, or do not. The norm after the experts hides it but for epsilon."""

    def change(router: nn.Router) -> None:
        router.rule = router.rule._replace(renormalise=not router.rule.renormalise)

    each(model, nn.Router, change)


def olmoe() -> Iterator[Mutant]:
    yield from experts()
    yield Mutant(name="q and k normed per head", apply=norm_of_each_head)
    yield Mutant(name="no clip of v", apply=no_clip_of_values)
    yield Mutant(name="no clip of q and k", apply=no_clip_of_queries)


def flex_olmo() -> Iterator[Mutant]:
    yield from experts()
    yield from olmo2()
    yield Mutant(
        name="softmax over all experts instead of the chosen", apply=other_softmax, std=SMALL
    )
