"""A budget: what is asked for is reached, and what cannot be is refused with what can."""

from __future__ import annotations

from math import prod

import pytest

from ostro.core.errors import UsageError
from ostro.core.load.model import load_model
from ostro.core.load.open import find
from ostro.core.records import STARTER, Settings
from ostro.core.testing.architecture import all_plugins

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("asked", "most"), [("3.5bpw", 3.5), ("5bpw", 5.0)])
def test_the_bits_asked_for_are_reached_and_not_passed(asked: str, most: float) -> None:
    plugins, settings = all_plugins(), Settings(reference=STARTER, quant=asked)
    loaded = load_model(find(settings, plugins), settings, plugins)
    weights = sum(
        prod(storage.shape)
        for module in loaded.model.modules()
        for storage in getattr(module, "held", [])
        if module is not loaded.model.lm_head
    )
    held = sum(layer.nbytes for layer in loaded.layers)
    assert 0.93 * most <= 8 * held / weights <= 1.01 * most
    assert any(line.startswith(f"budget {asked}:") for line in loaded.explain)


def test_too_few_bits_are_refused_with_the_fewest_there_are() -> None:
    plugins, settings = all_plugins(), Settings(reference=STARTER, quant="0.5bpw")
    with pytest.raises(UsageError, match=r"\d\.\d+bpw"):
        load_model(find(settings, plugins), settings, plugins)
