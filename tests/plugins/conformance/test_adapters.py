"""The kit's grid of adapters finds what a model or the core would do wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from ostro.core.adapters import delta
from ostro.core.adapters.delta import AdapterDelta
from ostro.core.adapters.mixture_table import MixtureTable
from ostro.core.nn import GatedMLP
from ostro.core.step import ROWS, Step
from ostro.plugins.conformance.adapters import (
    adapters_match_merged_weights,
    batch_rows_use_only_their_own_adapters,
)
from ostro.plugins.conformance.architecture import all_plugins
from ostro.plugins.conformance.parity import Subject, subject

Patch = pytest.MonkeyPatch
SAYS, ROWS_SAY = (
    adapters_match_merged_weights,
    batch_rows_use_only_their_own_adapters,
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
    gains_of = AdapterDelta.gains_of

    def ones(self: AdapterDelta, mixture: torch.Tensor) -> torch.Tensor | None:
        gains = gains_of(self, mixture)
        return None if gains is None else torch.ones_like(gains)

    patch.setattr(AdapterDelta, "gains_of", ones)


def knows_no_scale(patch: Patch) -> None:
    scales_of = MixtureTable.scales_of
    patch.setattr(
        MixtureTable, "scales_of", lambda self, delta: (scales_of(self, delta) != 0).float()
    )


def fuses_parts_the_wrong_way(patch: Patch) -> None:
    part_slice = delta.part_slice

    def swapped(parts: Mapping[str, int], part: str) -> slice:
        other = {"gate_proj": "up_proj", "up_proj": "gate_proj"}.get(part, part)
        return part_slice(parts, other)

    patch.setattr(delta, "part_slice", swapped)


@pytest.mark.sample(1)
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
