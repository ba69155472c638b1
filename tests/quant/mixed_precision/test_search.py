"""The search on a tiny model: budgets are kept, with the model run in floats and without."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any
from unittest.mock import ANY, Mock

import pytest
import torch

from ostro.core.engine.startup.calibration import open_probe
from ostro.core.errors import UsageError
from ostro.core.load.describe import outline
from ostro.core.load.model import LoadedModel, load_model
from ostro.core.load.planning import PlanInterrupted, PlanRequest
from ostro.core.load.quantize import FLOAT_FORMAT, makers
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import ProgressCallback, Settings
from ostro.entrypoints.cli import main
from ostro.plugins.conformance.formats import wide
from ostro.plugins.conformance.parity import Subject
from ostro.quant.mixed_precision.budget import Budget, is_budget, read_budget

SETTINGS = Settings(dtype="float32", quant="5bpw")

Stage = tuple[str, int, int]


@pytest.fixture(scope="module")
def plugins() -> Iterator[PluginManager]:
    """All plugins except the formats of ggml, whose encoders would take most of the time.

    The variable also holds for the commands of this module.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSTRO_DISABLE_PLUGINS", "quant.gguf")
        manager = PluginManager()
        manager.load(Settings())
        yield manager


@pytest.fixture(scope="module")
def llama(plugins: PluginManager) -> Iterator[Subject]:
    with wide(plugins, plugins.get("architectures", "llama")) as made:
        yield made


@pytest.fixture(scope="module")
def searched(llama: Subject, plugins: PluginManager) -> tuple[LoadedModel, list[Stage]]:
    """A model in the formats of a search, and the stages that the search reported."""
    steps: list[Stage] = []

    def report(*step: Any) -> None:
        steps.append(step)

    return load_model(llama.folder, SETTINGS, plugins, report, open_probe=open_probe), steps


@pytest.fixture(scope="module")
def interrupted(llama: Subject, plugins: PluginManager) -> PlanInterrupted:
    """A search that Ctrl-C ended after three sensitivities."""
    stop = interrupt("measuring sensitivities", 3)
    with pytest.raises(PlanInterrupted) as caught:
        load_model(llama.folder, SETTINGS, plugins, stop, open_probe=open_probe)
    return caught.value


def interrupt(stage: str, done: int) -> ProgressCallback:
    """A callback that acts like Ctrl-C once a stage has made some steps."""

    def report(*step: object) -> None:
        if step[:2] == (stage, done):
            raise KeyboardInterrupt

    return report


@contextmanager
def no_probe(*_: object) -> Iterator[None]:
    yield None


def outcome_of(loaded: LoadedModel) -> str:
    """The line about the search. The budget of 5 bits must be used up."""
    modules: Any = loaded.model.modules()
    storages = {
        id(s): s for module in modules for s in getattr(module, "active_storages", [])
    }.values()
    bits = 8 * sum(s.nbytes for s in storages) / sum(prod(s.shape) for s in storages)
    assert 4.5 <= bits <= 5.0
    [outcome] = [line for line in loaded.explain if line.startswith("budget 5bpw:")]
    return outcome


def test_a_budget_is_spent_without_excess(searched: tuple[LoadedModel, list[Stage]]) -> None:
    outcome = outcome_of(searched[0])
    assert "estimated divergence" in outcome
    assert "--topology with these formats does not repeat" in outcome


@pytest.mark.slow
def test_a_budget_is_spent_if_the_float_model_cannot_run(
    llama: Subject, plugins: PluginManager
) -> None:
    outcome = outcome_of(load_model(llama.folder, SETTINGS, plugins, open_probe=no_probe))
    assert "by the errors of weights only" in outcome
    assert "--topology with these formats does not repeat" not in outcome


def test_every_stage_reports_its_progress(searched: tuple[LoadedModel, list[Stage]]) -> None:
    steps = searched[1]
    stages = list(dict.fromkeys(stage for stage, _, _ in steps))
    assert stages == [
        "reading weights",
        "compiling kernels",
        "generating texts for calibration",
        "measuring importances",
        "choosing candidate formats",
        "measuring the errors of formats",
        "measuring sensitivities",
    ]
    assert all(0 <= done <= total for _, done, total in steps)
    last = [stage for stage, _, _ in steps if stage != "compiling kernels"][-1]
    assert last == "reading weights", "in the chosen formats"


def test_an_interrupted_search_gives_the_formats_chosen_so_far(
    interrupted: PlanInterrupted, plugins: PluginManager
) -> None:
    assert re.search(r"sensitivities of 3 of \d+ weights", str(interrupted))
    planned = interrupted.planned
    bits = {name: maker.format.bits for name, maker in makers(plugins).items()} | {FLOAT_FORMAT: 32}
    spent = sum(bits[name] * weight.count for weight, name in planned.formats.items())
    assert 4.5 <= spent / sum(weight.count for weight in planned.formats) <= 5.0


@pytest.mark.slow
def test_the_command_prints_them_as_json_and_exits_with_130(
    llama: Subject, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def stages() -> Iterator[ProgressCallback]:
        yield interrupt("measuring sensitivities", 3)

    monkeypatch.setattr("ostro.entrypoints.cli.stages.stages", stages)
    words = ["models", "--explain", str(llama.folder), "--quant", "5bpw", "--dtype", "float32"]
    assert main([*words, "--json"]) == 130
    found = json.loads(capsys.readouterr().out)
    assert found["interrupted"] and found["notes"][0].startswith("budget 5bpw:")
    assert {"path": "lm_head", "formats": ANY} in found["layers"]


def test_the_command_prints_them_as_a_table_and_exits_with_130(
    llama: Subject,
    interrupted: PlanInterrupted,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "ostro.core.engine.startup.start.open_weights", Mock(side_effect=interrupted)
    )
    assert main(["models", "--explain", str(llama.folder), "--quant", "5bpw"]) == 130
    table = capsys.readouterr().out
    assert "Interrupted" in table and "model.layers.1.mlp.gate_up" in table


def test_before_the_first_measurement_nothing_is_known(
    llama: Subject, plugins: PluginManager
) -> None:
    stop = interrupt("measuring the errors of formats", 3)
    with pytest.raises(KeyboardInterrupt) as caught:
        load_model(llama.folder, SETTINGS, plugins, stop, open_probe=open_probe)
    assert not isinstance(caught.value, PlanInterrupted)


@torch.inference_mode()
def test_the_divergence_is_that_of_the_log_probabilities(
    llama: Subject, plugins: PluginManager
) -> None:
    found = outline(llama.folder, SETTINGS, plugins)
    with open_probe(found, llama.folder, SETTINGS, plugins, lambda *step: None) as probe:
        assert probe is not None and abs(probe.divergence()) < 1e-9
        assert 64 <= sum(map(len, probe.divergence_texts)) < 128, "few forward passes of few tokens"
        request = PlanRequest(found, SETTINGS, plugins, no_probe, lambda *step: None)
        weight = next(each for each in request.weights if each.path.endswith("gate_up"))
        with probe.replaced(weight, makers(plugins)["afq4"], {}):
            said = torch.cat(list(probe.logits(probe.divergence_texts))).double().log_softmax(-1)
            measured = probe.divergence()
        floats = torch.cat([logits for logits, _ in probe.reference]).double().log_softmax(-1)
        expected = float((floats.exp() * (floats - said)).sum(-1).mean())
        assert expected > 0 and measured == pytest.approx(expected, rel=1e-3)


def test_too_small_a_budget_is_refused_with_the_least_that_is_needed(
    llama: Subject, plugins: PluginManager
) -> None:
    with pytest.raises(UsageError, match=r"needs at least \d\.\d+bpw"):
        load_model(llama.folder, Settings(quant="0.5bpw"), plugins, open_probe=no_probe)


@pytest.mark.parametrize("text", ["6GB", " .5 gib ", "100b", "4.5bpw", "3 BPW"])
def test_budgets_are_claimed(text: str) -> None:
    assert is_budget(text)


@pytest.mark.parametrize("text", ["q4k", "4", "4.5", "bpw", "6G", "", "6GB and more"])
def test_formats_are_not_claimed(text: str) -> None:
    assert not is_budget(text)


def test_budgets_are_read() -> None:
    assert read_budget("6GB") == Budget("6GB", nbytes=6 * 10**9)
    assert read_budget(" 4.5bpw") == Budget("4.5bpw", bits=4.5)
    for text in ("0bpw", "65bpw"):
        with pytest.raises(UsageError, match=r"must be in 0\.\.64"):
            read_budget(text)
