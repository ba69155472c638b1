"""--speculate: names, models that cannot speculate, and whole answers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tiny.model import make_model

from ostro.core.engine.startup.caches import cache_needs
from ostro.core.engine.startup.start import open_engine
from ostro.core.errors import UsageError
from ostro.core.messages.commands import ModelSpec
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
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
    text = "'ngrams': no such speculator; nearest: ngram; .*; and no draft model: .*not found"
    with pytest.raises(UsageError, match=text):
        open_(path, speculate="ngrams")
    open_(path, speculate="ngram")


def test_a_draft_model_is_loaded_beside_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = make_model(tmp_path / "target"), make_model(tmp_path / "draft")
    settings = Settings(reference=str(target), speculate=str(draft), explain=True)
    plugins = plugins_of(settings)
    engine, explain = open_engine([ModelSpec(settings)], plugins, lambda *args: None, warm=False)
    [entry] = engine.entries.values()
    alone, _ = open_engine(
        [ModelSpec(Settings(reference=str(target)))], plugins, lambda *args: None, warm=False
    )
    [plain] = alone.entries.values()
    assert entry.weight_bytes == 2 * plain.weight_bytes
    assert any("draft model" in line for line in explain)
    assert entry.loaded is not None and entry.loaded.draft is not None
    needs = sum(cache_needs(entry.loaded, settings, plugins).values())
    assert plain.loaded is not None
    assert needs == 2 * sum(cache_needs(plain.loaded, settings, plugins).values())
    closed = list[str]()
    for name, loaded in (("model", entry.loaded), ("draft", entry.loaded.draft)):
        monkeypatch.setattr(loaded.container, "close", partial(closed.append, name))
    engine.close()
    assert closed == ["model", "draft"]
    alone.close()


def test_a_draft_model_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    path = make_model(tmp_path)
    with pytest.raises(UsageError, match=r"--speculate starter: its vocabulary .* token \d+ is b'"):
        open_(path, speculate="starter")


@pytest.mark.parametrize(
    ("name", "match"),
    [("mllama", "must not read media by cross attention"), ("bert", "does not generate text")],
)
def test_a_model_that_cannot_draft_is_refused(name: str, match: str) -> None:
    plugins = plugins_of(Settings())
    with subject(plugins, "llama") as target, subject(plugins, name) as draft:
        loaded = target.load()
        loaded.draft = draft.load()
        with pytest.raises(UsageError, match=match):
            target.engine(loaded, speculate=name)
