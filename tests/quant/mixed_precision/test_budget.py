"""A budget is kept and used up; one that is too small is refused, with one that is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod, sqrt
from pathlib import Path

import pytest
from torch import Tensor

from ostro.core.engine.startup.calibration import open_probe
from ostro.core.errors import UsageError
from ostro.core.load.describe import outline
from ostro.core.load.model import load_model
from ostro.core.load.open import find
from ostro.core.load.planning import PlanRequest
from ostro.core.load.quantize import makers
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import STARTER, Settings
from ostro.entrypoints.open import open_tokenizer
from ostro.entrypoints.quality.divergence import compare, join
from ostro.entrypoints.quality.measure import ReferenceRun, open_model, run_reference
from ostro.entrypoints.quality.text import read_text, windows
from ostro.plugins.conformance.architecture import all_plugins
from ostro.quant.mixed_precision import search
from ostro.quant.mixed_precision.budget import read_budget
from ostro.quant.mixed_precision.search import CostTable

pytestmark = pytest.mark.slow

FLOATS = Settings(reference=STARTER, dtype="float32", exact=True)
"""Nothing but the formats of weights makes a difference."""

WINDOW = 512


@pytest.mark.parametrize(("asked", "most"), [("3.5bpw", 3.5), ("5bpw", 5.0)])
def test_a_bit_budget_is_reached_without_excess(asked: str, most: float) -> None:
    plugins, settings = all_plugins(), Settings(reference=STARTER, quant=asked)
    loaded = load_model(find(settings, plugins), settings, plugins, open_probe=open_probe)
    weights = sum(
        prod(storage.shape)
        for module in loaded.model.modules()
        for storage in getattr(module, "active_storages", [])
        if module is not loaded.model.lm_head
    )
    held = sum(layer.nbytes for layer in loaded.layers)
    assert 0.93 * most <= 8 * held / weights <= 1.01 * most
    assert any(line.startswith(f"budget {asked}:") for line in loaded.explain)


def test_too_few_bits_are_refused_with_the_fewest_there_are() -> None:
    plugins, settings = all_plugins(), Settings(reference=STARTER, quant="0.5bpw")
    with pytest.raises(UsageError, match=r"\d\.\d+bpw"):
        load_model(find(settings, plugins), settings, plugins, open_probe=open_probe)


def ignore(stage: str, done: int, total: int) -> None:
    """Progress is of no interest here."""


@pytest.fixture(scope="module")
def home(plugins: PluginManager) -> Path:
    return find(FLOATS, plugins)


@pytest.fixture(scope="module")
def reference(plugins: PluginManager, home: Path) -> ReferenceRun:
    """What the starter says of chats that its training left out."""
    with open_model(FLOATS, plugins, WINDOW) as model:
        tokenizer = open_tokenizer(home, plugins)
        cuts = windows(read_text(None, STARTER), tokenizer, model.loaded.context, None)
        return run_reference(model, cuts, lambda *news: None)


@pytest.fixture(scope="module")
def costs(plugins: PluginManager, home: Path) -> CostTable:
    """Those of the starter, measured once for all budgets."""
    found = outline(home, replace(FLOATS, quant="q8_0"), plugins)
    assert found.plan is not None
    open_plan = replace(found.plan, default=None)
    found = replace(found, plan=open_plan)
    probe = partial(open_probe, found, home, FLOATS, plugins, ignore)
    return CostTable.measure(PlanRequest(found, FLOATS, plugins, probe, ignore))


@pytest.fixture
def divergences(
    plugins: PluginManager,
    reference: ReferenceRun,
    costs: CostTable,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str], tuple[int, Tensor]]:
    """The bytes of the starter's weights as --quant says, and its KL at every position, [N]."""
    monkeypatch.setattr(search, "plan", lambda request: costs.plan(read_budget(request.text)))

    def measure(quant: str) -> tuple[int, Tensor]:
        with open_model(replace(FLOATS, quant=quant), plugins, WINDOW) as model:
            distributions = iter(reference.distributions)
            said = (logits for step in reference.steps for logits, _ in model.read(step))
            found = join([compare(next(distributions), logits) for logits in said])
            return model.loaded.nbytes, found.kl

    return measure


@pytest.mark.timeout(1200)
def test_a_budget_is_no_worse_than_any_format_of_its_size(
    plugins: PluginManager, divergences: Callable[[str], tuple[int, Tensor]]
) -> None:
    worse = []
    for name in makers(plugins):
        size, uniform = divergences(name)
        spent, mixed = divergences(f"{size}B")
        more = mixed - uniform
        error = float(more.std()) / sqrt(len(more))
        print(
            f"{name:8} {size:9,} bytes, KL {float(uniform.mean()):.2e}; budget {spent:9,} bytes, "
            f"KL {float(mixed.mean()):.2e}, {float(more.mean()):+.1e} ± {error:.0e}"
        )
        assert spent <= size, name
        if float(more.mean()) > error:
            worse.append(name)
    assert not worse
