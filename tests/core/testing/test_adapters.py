"""The kit's grid of adapters finds what a model or the core would do wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ostro.core.adapters.mixtures import Sheet
from ostro.core.adapters.pages import Table
from ostro.core.nn import GatedMLP
from ostro.core.step import ROWS, Step
from ostro.core.testing.adapters import (
    an_adapter_says_what_merged_weights_say,
    rows_of_a_batch_hear_their_own_adapters_alone,
)
from ostro.core.testing.architecture import all_plugins
from ostro.core.testing.parity import Subject, subject

Patch = pytest.MonkeyPatch
SAYS, ROWS_SAY = (
    an_adapter_says_what_merged_weights_say,
    rows_of_a_batch_hear_their_own_adapters_alone,
)


def forgets_the_step(patch: Patch) -> None:
    forward = GatedMLP.forward
    patch.setattr(GatedMLP, "forward", lambda self, x, step: forward(self, x, ROWS))


def leaves_the_mixture_behind(patch: Patch) -> None:
    patch.setattr(Step, "rows", lambda self, index: ROWS)


def mixes_the_rows_up(patch: Patch) -> None:
    rows = Step.rows
    patch.setattr(Step, "rows", lambda self, index: rows(self, index.flip(0)))


def knows_no_gain(patch: Patch) -> None:
    gains_of = Table.gains_of

    def ones(self: Table, mixture: torch.Tensor) -> torch.Tensor | None:
        gains = gains_of(self, mixture)
        return None if gains is None else torch.ones_like(gains)

    patch.setattr(Table, "gains_of", ones)


def knows_no_scale(patch: Patch) -> None:
    of = Sheet.of
    patch.setattr(Sheet, "of", lambda self, table: (of(self, table) != 0).float())


def fuses_parts_the_wrong_way(patch: Patch) -> None:
    columns = Table.columns

    def swapped(self: Table, part: str) -> slice:
        other = {"gate_proj": "up_proj", "up_proj": "gate_proj"}.get(part, part)
        return columns(self, other)

    patch.setattr(Table, "columns", swapped)


@pytest.mark.parametrize(
    ("name", "spoil", "check"),
    [
        ("llama", forgets_the_step, SAYS),
        ("llama", knows_no_gain, SAYS),
        ("llama", knows_no_scale, SAYS),
        ("llama", fuses_parts_the_wrong_way, SAYS),
        ("mixtral", leaves_the_mixture_behind, SAYS),
        ("mixtral", mixes_the_rows_up, ROWS_SAY),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_a_fault_turns_it_red(
    name: str,
    spoil: Callable[[Patch], None],
    check: Callable[[Subject], Any],
    monkeypatch: Patch,
) -> None:
    with subject(all_plugins(), name) as tiny:
        check(tiny)
        spoil(monkeypatch)
        with pytest.raises(AssertionError):
            check(tiny)
