"""Mutants of phimoe: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ostro import Mutant, Step, nn
from ostro.architectures.mixtral.mutants import gate_and_up
from ostro.architectures.phi.mutants import no_head_bias
from ostro.architectures.phimoe.model import LongRope, SparseMixer
from ostro.testing import each, retable

Choice = tuple[Tensor, Tensor]


def rerouted(change: Callable[[Tensor, Choice], Choice]) -> Callable[[nn.Model], None]:
    """Change the experts and weights, each [T, 2], that logits [T, experts] result in."""

    def spoil(mixer: SparseMixer) -> None:
        choose = mixer.choose

        def changed(x: Tensor, step: Step) -> Choice:
            return change(mixer(x, step).float(), choose(x, step))

        mixer.choose = changed  # type: ignore[method-assign]

    return lambda model: each(model, SparseMixer, spoil)


def softmax(logits: Tensor, choice: Choice) -> Choice:
    return choice[0], logits.softmax(-1).gather(-1, choice[0])


def renormalised(logits: Tensor, choice: Choice) -> Choice:
    return choice[0], logits.gather(-1, choice[0]).softmax(-1)


def with_first(mixer: SparseMixer) -> None:
    """Keep the first expert in the softmax of the second."""
    pick = mixer.pick

    def kept(logits: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        chosen, _ = pick(logits, candidates)
        best = logits.gather(-1, chosen)
        far = (best - logits) / torch.maximum(logits.abs(), best) > 2 * mixer.jitter
        return chosen, logits.masked_fill(far, -torch.inf).softmax(-1).gather(-1, chosen)

    mixer.pick = kept  # type: ignore[method-assign]


def no_jitter(model: nn.Model) -> None:
    each(model, SparseMixer, lambda mixer: setattr(mixer, "jitter", 0.0))


def first_in_second(model: nn.Model) -> None:
    each(model, SparseMixer, with_first)


def short_scale(model: nn.Model) -> None:
    each(model, LongRope, lambda rope: retable(rope, long_mscale=rope.rule["short_mscale"]))


def short_factors(model: nn.Model) -> None:
    each(model, nn.Rope, lambda rope: retable(rope, long_factor=rope.rule["short_factor"]))


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="softmax over all experts", apply=rerouted(softmax))
    yield Mutant(name="softmax over the two experts", apply=rerouted(renormalised))
    yield Mutant(name="experts do not share their weight", apply=no_jitter)
    yield Mutant(name="the first expert in the second softmax", apply=first_in_second)
    yield Mutant(name="gate and up of the experts exchanged", apply=gate_and_up)
    yield Mutant(name="the factor of short contexts", apply=short_scale)
    yield Mutant(name="short factors for long contexts", apply=short_factors)
    yield Mutant(name="no bias of the head", apply=no_head_bias)
