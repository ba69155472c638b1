"""What is no model, or no model that we know: said in a line, and never run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny.house import House
from tiny.model import change_config

from ostro.core.errors import (
    CheckpointError,
    ConfigError,
    ModelNotFound,
    PickleRefused,
    UnsupportedArchitecture,
)


def test_the_good_one_works(house: House) -> None:
    code, out, err = house.run()
    assert code == 0 and len(out) > 1 and not err


def test_bad_ones_leave_nothing_behind(house: House) -> None:
    """A refusal does not spoil the process for what comes next."""
    first = house.run()
    change_config(house.folder, num_attention_heads=5)
    assert house.run()[0] != 0
    change_config(house.folder)
    assert house.run() == first


def test_a_folder_that_is_not_there(house: House, tmp_path: Path) -> None:
    house.refused(ModelNotFound, "no file or folder", "nearest: m", model=tmp_path / "mm")
    house.refused(ModelNotFound, "nothing is known", "'no model'", model="no model")


def test_a_folder_without_a_config(house: House) -> None:
    (house.folder / "config.json").unlink()
    house.refused(ModelNotFound, "holds no config.json and no .gguf", "model.safetensors")


def test_an_empty_folder(house: House, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    house.refused(ModelNotFound, "empty", "it is empty", model=tmp_path / "empty")


def test_a_file_that_is_no_model(house: House) -> None:
    model = house.folder / "tokenizer.json"
    house.refused(CheckpointError, "tokenizer.json", "`ostro models`", model=model)


def test_pickles_are_refused(house: House) -> None:
    (house.folder / "model.safetensors").unlink()
    (house.folder / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    house.refused(PickleRefused, "pytorch_model.bin", "can run code", "convert")


def test_code_in_a_folder_is_never_run(house: House, tmp_path: Path) -> None:
    marker = tmp_path / "it-ran"
    for name in ("modeling_evil", "configuration_evil", "tokenization_evil"):
        (house.folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'w')\n")
    auto = {"AutoConfig": "configuration_evil.C", "AutoModelForCausalLM": "modeling_evil.M"}
    change_config(house.folder, auto_map=auto)
    words = json.loads((house.folder / "tokenizer_config.json").read_text())
    words["auto_map"] = {"AutoTokenizer": ["tokenization_evil.T", None]}
    (house.folder / "tokenizer_config.json").write_text(json.dumps(words))
    code, out, _ = house.run()
    assert code == 0 and out
    change_config(house.folder, auto_map=auto, architectures=["EvilForCausalLM"])
    house.refused(UnsupportedArchitecture, "'EvilForCausalLM'")
    assert not marker.exists()
    assert not [name for name in sys.modules if name.endswith("_evil")]


def test_an_unknown_architecture_names_the_nearest_and_the_way(house: House) -> None:
    change_config(house.folder, architectures=["LlamaForCausallM"])
    house.refused(
        UnsupportedArchitecture,
        "'LlamaForCausallM'",
        "nearest: LlamaForCausalLM",
        "`ostro models`",
        "pip install ostro-arch-",
    )


@pytest.mark.parametrize("classes", ["LlamaForCausalLM", {"a": 1}, [1], 5])
def test_architectures_that_are_no_names(house: House, classes: Any) -> None:
    change_config(house.folder, architectures=classes)
    house.refused(ConfigError, "config.json", "architectures=")


@pytest.mark.parametrize("classes", [None, []])
def test_a_model_without_a_class(house: House, classes: Any) -> None:
    change_config(house.folder, architectures=classes)
    house.refused(UnsupportedArchitecture, "names no class")
    assert house.run("--arch", "llama")[0] == 0
