"""Planners: the record that claims --quant chooses the format of each weight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ostro import hookimpl
from ostro.core.errors import PluginError, UsageError
from ostro.core.load.model import LoadedModel, load_model
from ostro.core.load.planning import PlannedFormats, PlanRequest
from ostro.core.load.quantize import FLOAT_FORMAT
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Planner
from ostro.core.settings import Settings
from ostro.plugins.conformance.formats import wide
from ostro.plugins.conformance.parity import Subject


def attention_only(request: PlanRequest) -> PlannedFormats:
    """The named format for attention, floats for all others."""
    name = request.text.removeprefix("attention:")
    formats = {each: name if "self_attn" in each.path else FLOAT_FORMAT for each in request.weights}
    return PlannedFormats(formats, f"{request.name}: {name} for attention")


class AttentionOnly:
    @hookimpl
    def ostro_planners(self) -> Iterable[Planner]:
        yield Planner(
            name="attention_only",
            claims=lambda text: text.startswith("attention:"),
            plan=f"{__name__}:attention_only",
            usage="attention:FORMAT",
        )


class Greedy:
    @hookimpl
    def ostro_planners(self) -> Iterable[Planner]:
        yield Planner(name="greedy", claims=lambda text: True, plan="a:b", usage="anything")


@pytest.fixture
def plugins() -> PluginManager:
    manager = PluginManager()
    manager.load()
    return manager


@pytest.fixture
def llama(plugins: PluginManager) -> Iterator[Subject]:
    with wide(plugins, plugins.get("architectures", "llama")) as made:
        yield made


@contextmanager
def no_probe(*_: object) -> Iterator[None]:
    """A model that cannot run in floats."""
    yield None


def load(folder: Path, quant: str, plugins: PluginManager) -> LoadedModel:
    settings = Settings(dtype="float32", quant=quant, topology="*.o_proj = q8_0")
    return load_model(folder, settings, plugins, open_probe=no_probe)


def test_a_plugin_chooses_the_format_of_each_weight(llama: Subject, plugins: PluginManager) -> None:
    plugins.register(AttentionOnly(), "attention_only")
    loaded = load(llama.folder, "attention:q4k", plugins)
    formats = {layer.path: layer.formats for layer in loaded.layers}
    assert formats["model.layers.0.self_attn.qkv"] == ("Q4_K",)
    assert formats["model.layers.0.self_attn.o_proj"] == ("Q8_0",), "what a rule names stays"
    assert formats["model.layers.0.mlp.gate_up"] == ("dense",)
    assert f"{llama.folder.name}: q4k for attention" in loaded.explain


def test_two_planners_for_one_text_are_a_conflict(llama: Subject, plugins: PluginManager) -> None:
    plugins.register(Greedy(), "greedy")
    with pytest.raises(PluginError, match=r"--quant 6GB.*greedy"):
        load(llama.folder, "6GB", plugins)


def test_a_budget_without_a_model_to_run_is_refused(llama: Subject, plugins: PluginManager) -> None:
    with pytest.raises(UsageError, match=r"--quant 6GB: the planner must run \S+ to choose"):
        load_model(llama.folder, Settings(quant="6GB"), plugins)


def test_the_texts_that_planners_claim_are_listed(llama: Subject, plugins: PluginManager) -> None:
    plugins.register(AttentionOnly(), "attention_only")
    with pytest.raises(UsageError, match=r"unknown format 'some'.*4\.5bpw.*attention:FORMAT"):
        load(llama.folder, "some", plugins)
