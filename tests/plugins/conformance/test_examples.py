"""Prompts with media for tests: cut, continued, and what a reference is asked for them."""

from __future__ import annotations

import numpy as np
import pytest

from ostro.core.messages.arrays import Array
from ostro.core.messages.prompt import Item, Prompt
from ostro.plugins.conformance.examples import (
    Example,
    beginning,
    longest_span,
    pixels,
    sound,
    words,
)

IMAGE = Item(kind="image", key=b"i", arrays={}, spans=((4, 3), (9, 2)))
SOUND = Item(kind="audio", key=b"a", arrays={}, since=15, length=7)
PLACES = np.arange(40, dtype=np.int32).reshape(2, 20)
PROMPT = Prompt(tokens=list(range(20)), items=[IMAGE, SOUND], positions=Array.of(PLACES))


@pytest.mark.parametrize(
    ("count", "expected", "kinds"),
    [(4, 4, ""), (5, 11, "i"), (8, 11, "i"), (12, 12, "i"), (15, 15, "i"), (16, 16, "ia")],
)
def test_a_beginning_cuts_no_medium(count: int, expected: int, kinds: str) -> None:
    cut = beginning(PROMPT, count)
    assert cut.tokens == PROMPT.tokens[:expected]
    assert "".join(item.kind[0] for item in cut.items) == kinds
    assert cut.positions is not None
    assert np.array_equal(cut.positions.numpy(), PLACES[:, :expected])
    assert beginning(Prompt(tokens=[1, 2, 3]), 2) == Prompt(tokens=[1, 2])


def test_the_longest_span_is_that_of_rows_in_the_prompt() -> None:
    assert longest_span(PROMPT) == 3 and longest_span(Prompt(tokens=[1], items=[SOUND])) == 0


def test_token_inputs_are_extended_for_generated_tokens() -> None:
    kinds = np.arange(20)[None] // 10
    pixels = np.ones((1, 20), np.float32)
    example = Example(PROMPT, {"kinds": kinds, "pixels": pixels, "sizes": np.array([[1, 2]])})
    asked = example.arguments(3)
    assert asked["kinds"].tolist() == [[0] * 10 + [1] * 13]
    assert asked["pixels"].shape == (1, 20) and asked["sizes"].tolist() == [[1, 2]]
    seen = Example(PROMPT, {"mask": np.eye(20, 4, dtype=np.int64)[None]}).arguments(2)["mask"]
    assert seen.shape == (1, 22, 4) and not seen[0, 19:].any()


def test_noise_is_small_and_the_same_for_one_seed() -> None:
    assert words(9, 100, first=90) == words(9, 100, first=90) != words(9, 100, first=90, seed=1)
    assert {*words(99, 100, first=90)} == {*range(90, 100)}
    assert pixels(0, 3, 5).shape == (3, 5, 3) and pixels(1, 2, 3, 5).dtype == np.uint8
    samples = sound(0, 0.5)
    assert len(samples) == 8000 and samples.dtype == np.float32 and abs(samples).max() < 1
