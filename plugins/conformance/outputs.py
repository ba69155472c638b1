"""Checks of a model's outputs: logits of a decoder, hidden states or scores of an encoder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import groupby

import pytest
import torch
from torch import Tensor

from ostro.core.nn import Embedding, Linear, Module
from ostro.core.nn.experts import ExpertLinear
from ostro.core.records import Mutant
from ostro.core.step import Step
from ostro.plugins.conformance import mutants
from ostro.plugins.conformance.checks import check, has_outputs
from ostro.plugins.conformance.diagnosis import diagnose
from ostro.plugins.conformance.mutants import fused
from ostro.plugins.conformance.mutants import unfuse as unfuse
from ostro.plugins.conformance.parity import BAR, RED, SMALL, STD, Subject, deviation, subject


class NonzeroDelta:
    """A delta that changes the output of its module."""

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


@check(has_outputs)
def outputs_match_the_reference(tiny: Subject) -> None:
    """At the usual standard deviation of weights, and at a small one that shows epsilons."""
    with subject(tiny.plugins, tiny.name, config=tiny.shape, std=SMALL) as small:
        for tested in (tiny, small):
            if tested.off(tested.engine()) > BAR:
                pytest.fail(str(diagnose(tested)), pytrace=False)


@check(has_outputs)
def plain_compositions_match_fused_kernels(tiny: Subject) -> None:
    loaded = tiny.load()
    if not fused(loaded.model):
        pytest.skip("the model has no fused kernel")
    unfuse(loaded.model)
    assert tiny.off(tiny.engine(loaded)) <= BAR


@check(has_outputs)
def every_mutant_fails_parity(tiny: Subject) -> None:
    """The generic mutants that apply to the model, and those of the record."""
    green, known = [], sorted(mutants.of(tiny.record, tiny.load().model), key=spread)
    for std, group in groupby(known, key=spread):
        other = subject(tiny.plugins, tiny.name, config=tiny.shape, std=std)
        with nullcontext(tiny) if std == tiny.std else other as tested:
            green += [mutant.name for mutant in group if not detects(tested, mutant)]
    assert known, f"{tiny.name}: no mutant applies; declare mutants in the record"
    assert not green, f"parity does not detect: {', '.join(green)}"


def spread(mutant: Mutant) -> float:
    return mutant.std or STD


def detects(tested: Subject, mutant: Mutant) -> bool:
    """Whether parity fails with a mutant applied."""
    loaded = tested.load()
    unfuse(loaded.model)
    mutant.apply(loaded.model)
    engine = tested.engine(loaded)
    cases = reversed(tested.cases)  # the last example has the most media, so it fails first
    return any(deviation(tested.answer(engine, e), expected) >= RED for e, expected in cases)


@check(has_outputs)
def adapter_deltas_reach_every_linear(tiny: Subject) -> None:
    """A delta on each linear changes an output. Each run has a new engine without cached
    features.
    """
    loaded, unreached = tiny.load(), []
    engine = tiny.engine(loaded)
    before = [(example, tiny.answer(engine, example)) for example in tiny.examples]
    for path, module in linears(loaded.model):
        module.deltas.append(NonzeroDelta())
        engine = tiny.engine(loaded)
        if all(torch.equal(tiny.answer(engine, example), plain) for example, plain in before):
            unreached.append(path)
        module.deltas.clear()
    assert not unreached, f"deltas have no effect on: {', '.join(unreached)}"


def linears(model: Module) -> Iterator[tuple[str, Linear | Embedding | ExpertLinear]]:
    for path, module in model.named_modules():
        if isinstance(module, Linear | Embedding | ExpertLinear):
            yield path, module
