"""Checks of what a model answers: logits of a decoder, states or scores of an encoder."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import pytest
import torch
from torch import Tensor

from ostro.core.nn import Embedding, Linear, Module
from ostro.core.nn.experts import ExpertLinear
from ostro.core.records import Mutant
from ostro.core.step import Step
from ostro.plugins.conformance import mutants
from ostro.plugins.conformance.checks import answers, check
from ostro.plugins.conformance.diagnosis import diagnose
from ostro.plugins.conformance.mutants import fused
from ostro.plugins.conformance.mutants import unfuse as unfuse
from ostro.plugins.conformance.parity import BAR, RED, SMALL, STD, Subject, deviation, subject


class Nudge:
    """A delta that is not zero: it shows whether a module's output reaches the answer."""

    def matmul(self, x: Tensor, y: Tensor, step: Step) -> Tensor:
        return y + 0.5 * x.sum(-1, keepdim=True)

    def matmul_t(self, x: Tensor, y: Tensor, step: Step) -> Tensor:
        return y + 0.5 * x.sum(-1, keepdim=True)

    def matmul_h(self, x: Tensor, y: Tensor, step: Step) -> Tensor:
        return y + 0.5 * x.sum(-1, keepdim=True)

    def rows(self, ids: Tensor, y: Tensor, step: Step) -> Tensor:
        return y + 0.5

    def grouped(self, x: Tensor, y: Tensor, expert_of_row: Tensor, step: Step) -> Tensor:
        return y + 0.5 * x.sum(-1, keepdim=True)


@check(answers)
def outputs_match_the_reference(tiny: Subject) -> None:
    """At the usual spread of weights, and at one where a wrong epsilon shows."""
    with subject(tiny.plugins, tiny.name, config=tiny.shape, std=SMALL) as small:
        for made in (tiny, small):
            if made.off(made.engine()) > BAR:
                pytest.fail(str(diagnose(made)), pytrace=False)


@check(answers)
def plain_compositions_match_fused_kernels(tiny: Subject) -> None:
    loaded = tiny.load()
    if not fused(loaded.model):
        pytest.skip("it has no fused kernel")
    unfuse(loaded.model)
    assert tiny.off(tiny.engine(loaded)) <= BAR


@check(answers)
def every_mutant_fails_parity(tiny: Subject) -> None:
    """The generic bugs of the modules that are there, and the plugin's own."""
    green, known = [], sorted(mutants.of(tiny.record, tiny.load().model), key=spread)
    for std, group in groupby(known, key=spread):
        with subject(tiny.plugins, tiny.name, config=tiny.shape, std=std) as made:
            green += [mutant.name for mutant in group if not notices(made, mutant)]
    assert known, f"{tiny.name}: no mutant fits, so parity proves nothing; declare some"
    assert not green, f"the parity test does not notice: {', '.join(green)}"


def spread(mutant: Mutant) -> float:
    return mutant.std or STD


def notices(made: Subject, mutant: Mutant) -> bool:
    """Whether parity turns red when a mutant is applied."""
    loaded = made.load()
    unfuse(loaded.model)
    mutant.apply(loaded.model)
    engine = made.engine(loaded)
    cases = reversed(made.cases)  # the last shows most
    return any(deviation(made.answer(engine, e), expected) >= RED for e, expected in cases)


@check(answers)
def adapter_deltas_reach_every_linear(tiny: Subject) -> None:
    """By one example or another; an engine that has encoded no media yet is asked each time."""
    loaded, silent = tiny.load(), []
    engine = tiny.engine(loaded)
    before = [(example, tiny.answer(engine, example)) for example in tiny.examples]
    for path, module in linears(loaded.model):
        module.deltas.append(Nudge())
        engine = tiny.engine(loaded)
        if all(torch.equal(tiny.answer(engine, example), said) for example, said in before):
            silent.append(path)
        module.deltas.clear()
    assert not silent, f"a delta is not heard on: {', '.join(silent)}"


def linears(model: Module) -> Iterator[tuple[str, Linear | Embedding | ExpertLinear]]:
    for path, module in model.named_modules():
        if isinstance(module, Linear | Embedding | ExpertLinear):
            yield path, module
