"""The tests of an architecture, from its record alone.

class TestLlama(ArchitectureTests):
    name = "llama"
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from ostro.core import nn
from ostro.core.nn import Embedding, Linear
from ostro.core.nn.experts import Stack
from ostro.core.ops import Fused
from ostro.core.plugins import PluginManager
from ostro.core.records import Settings, resolve
from ostro.core.step import Step
from ostro.core.testing.parity import BAR, RED, STD, Subject, deviation, greedy, subject

RAGGED = (1, 2, 7, 16, 17, 33, 50)
"""Prompt lengths of one batch: below, at and past the borders of blocks."""


class Nudge:
    """A delta that is not zero: it shows whether a module's output reaches the logits."""

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


def unfuse(model: nn.Module) -> None:
    """Run plain compositions in the place of fused kernels: a mutant of a module is then heard."""
    for module in model.modules():
        for op in vars(module).values():
            if isinstance(op, Fused):
                op.on = False


class Case:
    """The architecture called `name`, and its reference with re-initialised weights."""

    name: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def plugins(cls) -> PluginManager:
        manager = PluginManager()
        manager.load(Settings())
        return manager

    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls, plugins: PluginManager) -> Iterator[Subject]:
        with subject(plugins, cls.name) as made:
            yield made


class ArchitectureTests(Case):
    """Parity, mutants, caching, batching and deltas of the architecture called `name`."""

    def test_logits_equal_the_reference(self, tiny: Subject) -> None:
        logits = tiny.engine().runner.logits(tiny.prompt)
        assert deviation(logits, tiny.truth(tiny.prompt)) <= BAR

    def test_chunks_equal_the_whole(self, tiny: Subject) -> None:
        runner, truth = tiny.engine().runner, tiny.truth(tiny.prompt)
        for rows in (1, 7, 16, 23):
            assert deviation(runner.logits(tiny.prompt, rows), truth) <= BAR, f"{rows = }"

    def test_a_ragged_batch_says_what_each_says_alone(self, tiny: Subject) -> None:
        prompts = [tiny.prompt[:n] for n in RAGGED]
        together = greedy(tiny.engine(rows=40), prompts, 12)
        assert together == [greedy(tiny.engine(), [prompt], 12)[0] for prompt in prompts]
        assert together[-1] == tiny.truth_tokens(prompts[-1], 12)

    def test_the_captured_loop_says_the_same(self, tiny: Subject) -> None:
        prompts = [tiny.prompt[:n] for n in RAGGED]
        engine = tiny.engine(rows=40, replay=True)
        engine.runner.capture()
        assert greedy(engine, prompts, 12) == greedy(tiny.engine(rows=40), prompts, 12)

    def test_every_mutant_turns_parity_red(self, tiny: Subject, plugins: PluginManager) -> None:
        assert tiny.record.mutants is not None, f"{self.name} declares no mutants"
        green = []
        for mutant in resolve(tiny.record.mutants)():
            with subject(plugins, self.name, std=mutant.std or STD) as made:
                loaded = made.load()
                unfuse(loaded.model)
                mutant.apply(loaded.model)
                logits = made.engine(loaded).runner.logits(made.prompt)
                if deviation(logits, made.truth(made.prompt)) < RED:
                    green.append(mutant.name)
        assert not green, f"the parity test does not notice: {', '.join(green)}"

    def test_plain_compositions_say_what_their_kernels_say(self, tiny: Subject) -> None:
        loaded = tiny.load()
        unfuse(loaded.model)
        logits = tiny.engine(loaded).runner.logits(tiny.prompt)
        assert deviation(logits, tiny.truth(tiny.prompt)) <= BAR

    def test_a_delta_on_any_linear_changes_the_logits(self, tiny: Subject) -> None:
        loaded = tiny.load()
        runner = tiny.engine(loaded).runner
        before, silent = runner.logits(tiny.prompt), []
        for path, module in loaded.model.named_modules():
            if not isinstance(module, Linear | Embedding | Stack):
                continue
            module.deltas.append(Nudge())
            if torch.equal(runner.logits(tiny.prompt), before):
                silent.append(path)
            module.deltas.clear()
        assert not silent, f"a delta is not heard on: {', '.join(silent)}"
