"""Paths as references: what exists wins, and what does not is explained by what does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ostro.core.errors import ModelNotFound
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings


@pytest.fixture(scope="module")
def manager() -> PluginManager:
    manager = PluginManager()
    manager.load()
    return manager


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in (
        "llama/config.json",
        "llama/model.safetensors",
        "one/tiny-Q4_K_M.gguf",
        "one/mmproj-f16.gguf",
        "split/m-00002-of-00002.gguf",
        "split/m-00001-of-00002.gguf",
        "two/a.gguf",
        "two/b.gguf",
        "lora/adapter_config.json",
        "lora/adapter_model.safetensors",
        "weights/model.safetensors",
        "org/name/config.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("llama", "llama"),
        ("./llama/", "llama"),
        ("llama/model.safetensors", "llama/model.safetensors"),
        ("one", "one/tiny-Q4_K_M.gguf"),
        ("split", "split/m-00001-of-00002.gguf"),
        ("two/b.gguf", "two/b.gguf"),
        ("org/name", "org/name"),
    ],
)
def test_a_path_that_exists_wins(
    reference: str, found: str, models: Path, manager: PluginManager
) -> None:
    assert manager.locate(reference, Settings()).samefile(models / found)
    assert manager.locate(str(models / reference), Settings(offline=True)).samefile(models / found)


def test_home_is_expanded(
    models: Path, manager: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(models))
    assert manager.locate("~/llama", Settings()).samefile(models / "llama")
    with pytest.raises(ModelNotFound, match="cannot be looked up"):
        manager.locate("~nobody-of-that-name/llama", Settings())


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("two", r"several models: a\.gguf, b\.gguf; give the path of one"),
        ("weights", r"no config\.json and no \.gguf; it holds model\.safetensors"),
        ("empty", "it is empty"),
        ("lora", "is an adapter; name its base model first"),
        (".", r"no config\.json .* it holds .*llama"),
        ("./lama", r"no file or folder ./lama; .* has no 'lama'; nearest: llama"),
        ("./no/such/thing", r"has no 'no': it holds .*empty"),
        ("one/tiny-Q4_K_S.gguf", r"nearest: tiny-Q4_K_M\.gguf"),
        ("lama", r"model 'lama' not found"),
        ("a\0b", "cannot be looked up|not found"),
        ("/" + "x" * 5000, "cannot be looked up"),
        ("", "not found"),
    ],
)
def test_what_is_no_model_is_explained(
    reference: str, message: str, models: Path, manager: PluginManager
) -> None:
    with pytest.raises(ModelNotFound, match=message) as caught:
        manager.locate(reference, Settings(offline=True))
    assert len(str(caught.value)) < 1000
    assert not manager.broken


def test_adapters_are_folders_with_a_config(models: Path, manager: PluginManager) -> None:
    assert manager.locate("lora", Settings(), kind="adapter").samefile(models / "lora")
    with pytest.raises(ModelNotFound, match=r"holds no adapter_config.json; it holds model"):
        manager.locate("weights", Settings(), kind="adapter")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_named(models: Path, manager: PluginManager) -> None:
    (models / "llama").chmod(0)
    with pytest.raises(ModelNotFound, match="Permission denied"):
        manager.locate("llama", Settings())
    (models / "llama").chmod(0o755)
