"""Pooling: every mode against its formula, and folders that say what follows the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ostro.core.errors import CheckpointError, ConfigError
from ostro.core.load.pooling import MODES, WORDS, Pooling, read_pooling

CPU = torch.device("cpu")
ROWS = torch.tensor([[1.0, 4.0], [3.0, 0.0], [5.0, 1.0], [2.0, 2.0]])
BOUNDS = [0, 3, 4]
EXPECTED = {
    "first": [1.0, 4.0],
    "last": [5.0, 1.0],
    "max": [5.0, 4.0],
    "mean": [3.0, 5 / 3],
    "mean_sqrt": [9 / 3**0.5, 5 / 3**0.5],
    "weighted": [(1 + 6 + 15) / 6, (4 + 0 + 3) / 6],
}


@pytest.mark.parametrize("mode", EXPECTED)
def test_modes(mode: str) -> None:
    plain = Pooling(mode, normalize=False)(ROWS, BOUNDS)
    torch.testing.assert_close(plain[0], torch.tensor(EXPECTED[mode]))
    unit = Pooling(mode)(ROWS.bfloat16(), BOUNDS)
    assert unit.dtype == torch.float32
    torch.testing.assert_close(unit.norm(dim=-1), torch.ones(2))


def test_every_mode_is_tested() -> None:
    assert set(MODES.values()) == set(WORDS.values()) == set(EXPECTED)


def describe(
    folder: Path,
    *modules: tuple[str, dict[str, Any]],
    root: str = "sentence_transformers.models",
) -> Path:
    """A folder as sentence-transformers saves it: modules by class, with their config."""
    listed = []
    for i, (kind, config) in enumerate(modules):
        place = folder / f"{i}_{kind.rpartition('.')[2]}"
        place.mkdir()
        (place / "config.json").write_text(json.dumps(config))
        listed.append({"type": f"{root}.{kind}", "path": place.name})
    (folder / "modules.json").write_text(json.dumps(listed))
    return folder


@pytest.mark.parametrize("word", WORDS)
def test_a_mode_is_a_word_in_newer_folders(word: str, tmp_path: Path) -> None:
    parts = (
        ("base.modules.transformer.Transformer", {}),
        ("sentence_transformer.modules.pooling.Pooling", {"pooling_mode": word}),
        ("base.modules.dense.Dense", {"in_features": 2, "out_features": 2}),
        ("sentence_transformer.modules.normalize.Normalize", {}),
    )
    folder = describe(tmp_path, *parts, root="sentence_transformers")
    save_file({"linear.weight": torch.eye(2)}, folder / "2_Dense" / "model.safetensors")
    found = read_pooling(folder, "last", CPU)
    assert found.mode == WORDS[word] and found.normalize and len(found.layers) == 1


MEAN = ("Pooling", {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False})
TANH = "torch.nn.modules.activation.Tanh"


def test_a_folder_without_modules_gives_the_default(tmp_path: Path) -> None:
    found = read_pooling(tmp_path, "last", CPU)
    assert found.mode == "last" and found.normalize


def test_a_dense_layer_follows(tmp_path: Path) -> None:
    config = {"in_features": 2, "out_features": 3, "activation_function": TANH}
    folder = describe(tmp_path, ("Transformer", {}), MEAN, ("Dense", config), ("Normalize", {}))
    weight, bias = torch.randn(3, 2), torch.randn(3)
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "2_Dense/model.safetensors")
    found = read_pooling(folder, "last", CPU)
    expected = torch.tanh(torch.tensor([EXPECTED["mean"]]) @ weight.T + bias)
    torch.testing.assert_close(found(ROWS, BOUNDS)[:1], expected / expected.norm())


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ((("LSTM", {}),), "LSTM.*not supported"),
        ((("Pooling", {}),), "0 pooling modes"),
        ((("Pooling", {"pooling_mode": "median"}),), "pooling_mode='median' is not supported"),
        ((("Pooling", {"pooling_mode": ["mean", "max"]}),), r"pooling_mode=\['mean', 'max'\]"),
        ((("Pooling", {key: True for key in MODES}),), "6 pooling modes"),
        ((MEAN, ("Dense", {"activation_function": "os.system"})), "os.system.*not supported"),
    ],
)
def test_what_is_not_implemented_is_named(
    modules: tuple[tuple[str, dict[str, Any]], ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_pooling(describe(tmp_path, *modules), "mean", CPU)


@pytest.mark.parametrize(
    ("path", "is_read"),
    [(".", True), ("x/..", True), ("../other", False), ("x/../../other", False)],
)
def test_a_module_outside_of_the_folder_is_not_read(
    path: str, is_read: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    for place in (folder / "x", tmp_path / "other"):
        place.mkdir(parents=True)
    for place in (folder, tmp_path / "other"):
        (place / "config.json").write_text(json.dumps(MEAN[1]))
    listed = [{"type": "sentence_transformers.models.Pooling", "path": path}]
    (folder / "modules.json").write_text(json.dumps(listed))
    if is_read:
        assert read_pooling(folder, "last", CPU).mode == "mean"
    else:
        with pytest.raises(ConfigError, match="is outside of the folder"):
            read_pooling(folder, "last", CPU)


@pytest.mark.parametrize("text", ["{}", "[", '[{"path": "../../etc"}]'])
def test_a_malformed_list_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(ConfigError, match=r"modules\.json"):
        read_pooling(tmp_path, "mean", CPU)


def test_a_dense_layer_of_another_shape_is_refused(tmp_path: Path) -> None:
    folder = describe(tmp_path, MEAN, ("Dense", {"in_features": 2, "out_features": 3}))
    with pytest.raises(CheckpointError, match="other formats than safetensors"):
        read_pooling(folder, "mean", CPU)
    save_file({"linear.weight": torch.randn(2, 2)}, folder / "1_Dense/model.safetensors")
    with pytest.raises(CheckpointError, match=r"\[2, 2\], config.json requires \(3, 2\)"):
        read_pooling(folder, "mean", CPU)
