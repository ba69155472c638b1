"""Which weights are measured, and what the others get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from ostro.quant.mixed_precision.sensitivity import (
    DEPTHS,
    coarse_to_fine,
    interpolated,
    kinds,
    pilots,
)


@dataclass(frozen=True)
class Slot:
    part: str


@dataclass(frozen=True)
class Weight:
    path: str
    part: str = ""
    shape: tuple[int, bool, str] = (64, False, "F32")

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot(self.part),)


def model(layers: int) -> list[Any]:
    """Weights of a decoder: an embedding, and four weights in each layer."""
    weights = [Weight("embed_tokens")]
    for i in range(layers):
        weights += [Weight(f"layers.{i}.qkv", part) for part in "qkv"]
        weights.append(Weight(f"layers.{i}.down", shape=(128, False, "F32")))
    return weights


def test_kinds_are_weights_of_all_layers() -> None:
    found = kinds(model(30))
    assert [len(kind) for kind in found] == [1, 30, 30, 30, 30]
    assert {weight.slots[0].part for weight in found[2]} == {"k"}


@pytest.mark.parametrize("layers", [30, 80])
def test_measurements_do_not_grow_with_the_layers(layers: int) -> None:
    assert len(list(pilots(kinds(model(layers))))) == 1 + 4 * DEPTHS


def test_a_model_of_few_layers_is_measured_completely() -> None:
    assert sorted(map(str, pilots(kinds(model(3))))) == sorted(map(str, model(3)))


def test_the_first_measurements_cover_all_kinds_and_both_ends() -> None:
    first = [weight.path for weight in list(pilots(kinds(model(30))))[:9]]
    assert first == ["embed_tokens", *["layers.0.qkv"] * 3, "layers.0.down"] + [
        "layers.29.qkv"
    ] * 3 + ["layers.29.down"]


def test_depths_are_the_ends_and_spread_between() -> None:
    assert coarse_to_fine(1) == [0] and coarse_to_fine(2) == [0, 1]
    assert coarse_to_fine(3) == [0, 2, 1] and coarse_to_fine(4) == [0, 3, 1, 2]
    assert coarse_to_fine(30) == [0, 29, 1, 28, 14]


def test_values_between_measured_ones_are_geometric_means() -> None:
    weights: list[Any] = [Weight(f"layers.{i}.down") for i in range(6)]
    found = interpolated(weights, {weights[1]: 4.0, weights[3]: 1.0})
    assert list(found) == weights
    assert list(found.values()) == pytest.approx([4, 4, 2, 1, 1, 1])
    assert interpolated(weights, {}) == {}
