"""The sweep: every causal class of the installed transformers is right or refused."""

from __future__ import annotations

import json
import re
from importlib.resources import files

import pytest
import transformers
from sweep.configs import tiny_configs
from sweep.run import NO_REFERENCE, REFUSED, RIGHT, WRONG, causal_classes, in_child, sweep
from sweep.types import outcomes, text_types

from ostro.core.plugins.manager import PluginManager

LEAST = 105
"""Causal classes that must be right."""

BARE = re.compile(r"\b(Attribute|Key|Index|Type|Name)Error\b")

STORED = json.loads((files("ostro.architectures.transformers") / "sweep.json").read_text())
CLASSES = STORED["classes"]
CURRENT = STORED["transformers"] == transformers.__version__


def counted(result: str) -> list[str]:
    return [name for name, row in CLASSES.items() if row["result"] == result]


def test_the_stored_sweep_reaches_its_goal() -> None:
    assert len(counted(RIGHT)) >= LEAST
    assert not counted(WRONG)
    assert all(CLASSES[name]["why"] for name in (*counted(REFUSED), *counted(NO_REFERENCE)))


@pytest.mark.skipif(not CURRENT, reason="the sweep is stored for another transformers")
def test_the_stored_sweep_has_every_class() -> None:
    assert set(CLASSES) == set(causal_classes())


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "result"),
    [("OPTForCausalLM", RIGHT), ("BloomForCausalLM", REFUSED), ("MambaForCausalLM", REFUSED)],
)
def test_a_class_has_its_stored_outcome(name: str, result: str, plugins: PluginManager) -> None:
    assert in_child(name, plugins)["result"] == result == CLASSES[name]["result"]


def test_a_wrong_class_is_found(plugins: PluginManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder whose layers compute something else than the reference's."""
    from ostro.architectures.transformers import modules

    plain = modules.PagedCache.forward
    monkeypatch.setattr(
        modules.PagedCache,
        "forward",
        lambda self, q, k, v, scale, **options: plain(self, q, k, v, scale * 1.1, **options),
    )
    row = in_child("OPTForCausalLM", plugins)
    assert row["result"] == WRONG and "deviate" in row["why"]


def test_a_child_that_takes_too_long_ends(
    plugins: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sweep import run

    monkeypatch.setattr(run, "SECONDS", 1)
    monkeypatch.setattr(run, "outcome", lambda name, plugins: run.signal.pause())
    assert in_child("OPTForCausalLM", plugins)["result"] == NO_REFERENCE


def test_a_tiny_config_has_a_layer_of_each_kind() -> None:
    cls = transformers.Gemma3ForCausalLM
    fields = next(tiny_configs(cls))
    assert set(fields["layer_types"]) == {"sliding_attention", "full_attention"}
    assert fields["num_hidden_layers"] == len(fields["layer_types"]) == 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_causal_class_is_right_or_refused(plugins: PluginManager) -> None:
    """As stored; `python -m sweep.run --into FILE` stores it again, see CONTRIBUTING.md."""
    found = dict(sweep(causal_classes(), plugins))
    results = {name: row["result"] for name, row in found.items()}
    assert {name for name, result in results.items() if result == WRONG} == set()
    assert sum(result == RIGHT for result in results.values()) >= LEAST
    records = plugins.collect("architectures").values()
    claimed = {name for record in records for name in record.classes}
    refused = {n: found[n]["why"] for n in claimed & set(found) if results[n] == REFUSED}
    assert not refused, "a plugin claims these classes"
    if CURRENT:
        stored = {name: row["result"] for name, row in CLASSES.items()}
        changed = {n: r for n, r in results.items() if n not in claimed and stored.get(n) != r}
        assert not changed, "store the sweep again"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("gemma3_text", "Gemma3ForCausalLM", "^gemma3$"),
        ("gemma3_text", "", "model_type 'gemma3_text'; name the class of the weights"),
        ("gemma3n_text", "Gemma3nForCausalLM", "^transformers$"),
        ("gemma3n_text", "Gemma3nTextModel", "not a causal language model"),
        ("mllama_text_model", "MllamaForCausalLM", "^transformers$"),
        ("llama4_text", "Llama4ForCausalLM", "reads the weight of its Embedding module by itself"),
        ("qwen3_vl_text", "Qwen3VLTextModel", "not a causal language model"),
        ("qwen2_5_omni_text", "Qwen2_5OmniThinkerTextModel", "not a causal language model"),
        ("musicgen", "MusicgenForCausalLM", "its config has several text models"),
    ],
)
def test_a_text_part_is_supported_or_refused(
    kind: str, name: str, text: str, plugins: PluginManager
) -> None:
    assert re.search(text, dict(outcomes(kind, plugins))[name])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_text_model_type_ends_in_a_python_error(plugins: PluginManager) -> None:
    for kind in text_types():
        for name, outcome in outcomes(kind, plugins):
            assert not BARE.search(outcome), (kind, name, outcome)
