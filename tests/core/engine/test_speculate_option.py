"""--speculate: names, models that cannot speculate, and whole answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny.model import make_model

from ostro.core.engine.start import open_engine
from ostro.core.errors import UsageError
from ostro.core.messages.commands import ModelSpec
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Settings
from ostro.plugins.conformance.parity import subject


def plugins_of(settings: Settings) -> PluginManager:
    plugins = PluginManager()
    plugins.load(settings)
    return plugins


def open_(path: Path, **fields: object) -> None:
    settings = Settings(reference=str(path), **fields)  # type: ignore[arg-type]
    plugins = plugins_of(settings)
    engine, _ = open_engine([ModelSpec(settings)], plugins, lambda *args: None, warm=False)
    engine.close()


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    path = make_model(tmp_path)
    with pytest.raises(UsageError, match="'ngrams': no such speculator; nearest: ngram"):
        open_(path, speculate="ngrams")
    open_(path, speculate="ngram")


def test_a_model_with_recurrent_states_is_refused() -> None:
    plugins = plugins_of(Settings())
    with subject(plugins, "bamba") as made:
        with pytest.raises(UsageError, match="keep recurrent states"):
            made.engine(speculate="ngram")
        made.engine()
