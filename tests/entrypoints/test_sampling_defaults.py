"""Default sampling parameters: their sources, their order, and invalid values in files."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gguf.constants import Keys
from tiny.model import make_gguf, make_model

from ostro.core.pipeline import SamplingDefaults
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.entrypoints.open import find_model
from ostro.entrypoints.sampling_defaults import FALLBACK, GGUF_KEYS, GGUF_PREFIX, sampling_defaults

CONFIG, GGUF = "generation_config.json", "GGUF general.sampling"


def defaults_of(
    folder: Path, config: object = None, metadata: Mapping[str, Any] = {}
) -> SamplingDefaults:
    """The defaults of a container in `folder` with these two sources."""
    if config is not None:
        (folder / CONFIG).write_text(json.dumps(config))
    container: Any = SimpleNamespace(path=folder, metadata=metadata)
    return sampling_defaults(container)


def test_a_model_that_states_nothing_gets_the_fallback(tmp_path: Path) -> None:
    for config in (None, {}, {"do_sample": True, "eos_token_id": 2}):
        defaults = defaults_of(tmp_path, config)
        assert defaults.values == FALLBACK
        assert str(defaults) == "temperature 0.8, top_k 40, top_p 0.95, min_p 0.05 (fallback)"


def test_a_model_with_some_values_gets_no_other_ones(tmp_path: Path) -> None:
    """Gemma states top_k and top_p: its temperature is 1."""
    defaults = defaults_of(tmp_path, {"top_k": 64, "top_p": 0.95, "min_p": None})
    assert defaults.values == {"top_k": 64, "top_p": 0.95}
    assert str(defaults) == "top_k 64, top_p 0.95 (generation_config.json)"


def test_the_fallback_completes_a_repetition_penalty(tmp_path: Path) -> None:
    defaults = defaults_of(tmp_path, {"repetition_penalty": 1.1})
    assert defaults.values == {"repetition_penalty": 1.1, **FALLBACK}
    assert defaults.sources == {"repetition_penalty": CONFIG, **dict.fromkeys(FALLBACK, "fallback")}


def test_do_sample_false_is_greedy(tmp_path: Path) -> None:
    defaults = defaults_of(tmp_path, {"do_sample": False, "temperature": 0.6, "top_p": 0.9})
    assert defaults.values == {"temperature": 0.0, "top_p": 0.9}


def test_generation_config_precedes_gguf_metadata(tmp_path: Path) -> None:
    metadata = {f"{GGUF_PREFIX}temp": 0.5, f"{GGUF_PREFIX}penalty_repeat": 1.2}
    assert defaults_of(tmp_path, None, metadata).values == {
        "temperature": 0.5,
        "repetition_penalty": 1.2,
    }
    defaults = defaults_of(tmp_path, {"temperature": 0.7}, metadata)
    assert defaults.values == {"temperature": 0.7, "repetition_penalty": 1.2}
    assert defaults.sources == {"temperature": CONFIG, "repetition_penalty": GGUF}


def test_the_keys_are_those_of_the_gguf_package() -> None:
    names = {key for key in vars(Keys.General).values() if str(key).startswith(GGUF_PREFIX)}
    assert {GGUF_PREFIX + key for key in GGUF_KEYS} < names


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temp", "hot"),
        ("temp", math.nan),
        ("temp", -0.5),
        ("temp", 1e99),
        ("temp", True),
        ("temp", [0.5]),
        ("top_k", 2**40),
        ("top_k", 4.5),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("min_p", math.inf),
        ("penalty_repeat", 0.0),
    ],
)
def test_an_invalid_value_is_ignored_with_a_warning(
    tmp_path: Path, key: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    name = GGUF_KEYS[key]
    with caplog.at_level(logging.WARNING):
        from_gguf = defaults_of(tmp_path, None, {GGUF_PREFIX + key: value})
        from_config = defaults_of(tmp_path, {name: value})
    assert from_gguf.values == from_config.values == FALLBACK
    assert len(caplog.messages) == 2 and all(f" {name} is ignored" in m for m in caplog.messages)
    assert tmp_path.name in caplog.messages[0] and CONFIG in caplog.messages[1]


def test_keys_without_a_parameter_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = {f"{GGUF_PREFIX}mirostat": 2, f"{GGUF_PREFIX}temp": 0.5}
    assert defaults_of(tmp_path, None, metadata).values == {"temperature": 0.5}
    assert "mirostat" in caplog.text and "not supported" in caplog.text


def test_minus_one_is_all_tokens(tmp_path: Path) -> None:
    assert defaults_of(tmp_path, {"top_k": -1, "temperature": 0.6}).values["top_k"] == 0


def test_a_gguf_file_states_its_sampling(tmp_path: Path, plugins: PluginManager) -> None:
    plain = make_gguf(tmp_path / "plain.gguf")
    stated = make_gguf(tmp_path / "stated.gguf", sampling={"temp": 0.25, "top_k": 7})
    of = {
        file: find_model(Settings(reference=str(file)), plugins).sampling
        for file in (plain, stated)
    }
    assert of[plain].values == FALLBACK
    assert of[stated].values == {"temperature": 0.25, "top_k": 7}
    assert str(of[stated]) == "temperature 0.25, top_k 7 (GGUF general.sampling)"


def test_generation_config_none_is_neutral(tmp_path: Path, plugins: PluginManager) -> None:
    folder = make_model(tmp_path / "m")
    (folder / CONFIG).write_text('{"temperature": 0.5}')
    for choice, values in (("auto", {"temperature": 0.5}), ("none", {})):
        settings = Settings(reference=str(folder), generation_config=choice)  # type: ignore[arg-type]
        assert find_model(settings, plugins).sampling.values == values
    assert str(SamplingDefaults()) == "temperature 1, all tokens"


def test_values_of_another_source_replace_defaults(tmp_path: Path) -> None:
    defaults = defaults_of(tmp_path, {"repetition_penalty": 1.1})
    shown = str(defaults.override({"top_k": 5, "seed": 1234567}, "options"))
    penalty, fallback, options = shown.split("; ")
    assert penalty == "repetition_penalty 1.1 (generation_config.json)"
    assert fallback == "temperature 0.8, top_p 0.95, min_p 0.05 (fallback)"
    assert options == "top_k 5, seed 1234567 (options)"
    greedy = defaults_of(tmp_path, {}).override({"temperature": 0.0}, "options")
    assert str(greedy) == "temperature 0 (options)"
