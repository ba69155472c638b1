"""What is no model, or no model that we know: expected in a line, and never run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny.cli_runner import CliRunner
from tiny.model import change_config

from ostro.core.errors import (
    CheckpointError,
    ConfigError,
    ModelNotFound,
    PickleRefused,
    UnsupportedArchitecture,
)


def test_a_valid_model_runs(runner: CliRunner) -> None:
    code, out, err = runner.run()
    assert code == 0 and len(out) > 1 and not err


def test_a_rejected_model_leaves_no_state(runner: CliRunner) -> None:
    """A refusal does not spoil the process for what comes next."""
    first = runner.run()
    change_config(runner.folder, num_attention_heads=5)
    assert runner.run()[0] != 0
    change_config(runner.folder)
    assert runner.run() == first


def test_a_missing_folder_is_rejected(runner: CliRunner, tmp_path: Path) -> None:
    runner.assert_rejected(ModelNotFound, "no file or folder", "nearest: m", model=tmp_path / "mm")
    runner.assert_rejected(ModelNotFound, "not found", "'no model'", model="no model")


def test_a_folder_without_a_config(runner: CliRunner) -> None:
    (runner.folder / "config.json").unlink()
    runner.assert_rejected(ModelNotFound, "holds no config.json and no .gguf", "model.safetensors")


def test_an_empty_folder(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    runner.assert_rejected(ModelNotFound, "empty", "it is empty", model=tmp_path / "empty")


def test_a_file_of_another_type_is_rejected(runner: CliRunner) -> None:
    model = runner.folder / "tokenizer.json"
    runner.assert_rejected(CheckpointError, "tokenizer.json", "`ostro models`", model=model)


def test_pickles_are_refused(runner: CliRunner) -> None:
    (runner.folder / "model.safetensors").unlink()
    (runner.folder / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    runner.assert_rejected(PickleRefused, "pytorch_model.bin", "can run code", "convert")


def test_code_in_a_folder_is_never_run(runner: CliRunner, tmp_path: Path) -> None:
    marker = tmp_path / "it-ran"
    for name in ("modeling_evil", "configuration_evil", "tokenization_evil"):
        (runner.folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'w')\n")
    auto = {"AutoConfig": "configuration_evil.C", "AutoModelForCausalLM": "modeling_evil.M"}
    change_config(runner.folder, auto_map=auto)
    words = json.loads((runner.folder / "tokenizer_config.json").read_text())
    words["auto_map"] = {"AutoTokenizer": ["tokenization_evil.T", None]}
    (runner.folder / "tokenizer_config.json").write_text(json.dumps(words))
    code, out, _ = runner.run()
    assert code == 0 and out
    change_config(runner.folder, auto_map=auto, architectures=["EvilForCausalLM"])
    runner.assert_rejected(UnsupportedArchitecture, "'EvilForCausalLM'")
    assert not marker.exists()
    assert not [name for name in sys.modules if name.endswith("_evil")]


def test_an_unknown_architecture_names_the_nearest_and_the_way(runner: CliRunner) -> None:
    change_config(runner.folder, architectures=["LlamaForCausallM"])
    runner.assert_rejected(
        UnsupportedArchitecture,
        "'LlamaForCausallM'",
        "nearest: LlamaForCausalLM",
        "`ostro models`",
        "pip install ostro-arch-",
    )


@pytest.mark.parametrize("classes", ["LlamaForCausalLM", {"a": 1}, [1], 5])
def test_malformed_architectures_are_rejected(runner: CliRunner, classes: Any) -> None:
    change_config(runner.folder, architectures=classes)
    runner.assert_rejected(ConfigError, "config.json", "architectures=")


@pytest.mark.parametrize("classes", [None, []])
def test_a_model_without_a_class(runner: CliRunner, classes: Any) -> None:
    change_config(runner.folder, architectures=classes)
    runner.assert_rejected(UnsupportedArchitecture, "names no class")
    assert runner.run("--arch", "llama")[0] == 0
