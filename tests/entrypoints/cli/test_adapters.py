"""`ostro adapters check`: what adapters are, and what a model makes of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

Ostro = Callable[..., Any]
NAMES = ("model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.o_proj")
WIDE, RANK = 32, 3


def factors(names: tuple[str, ...] = NAMES, *, zero: tuple[str, ...] = ()) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(4)
    made = {}
    for name in names:
        b = torch.zeros(WIDE, RANK) if name in zero else torch.randn(WIDE, RANK, generator=random)
        made[f"base_model.model.{name}.lora_A.weight"] = torch.randn(RANK, WIDE, generator=random)
        made[f"base_model.model.{name}.lora_B.weight"] = b
    return made


def write(folder: Path, tensors: dict[str, Tensor], **config: Any) -> str:
    folder.mkdir()
    defaults = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "target_modules": "all-linear",
    }
    (folder / "adapter_config.json").write_text(json.dumps(defaults | config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return str(folder)


def checked(ostro: Ostro, *words: str) -> tuple[int, list[dict[str, Any]]]:
    ran = ostro("adapters", "check", "--json", *words)
    return ran.code, json.loads(ran.out)


def test_it_says_what_the_files_say(ostro: Ostro, tmp_path: Path) -> None:
    tensors = factors()
    folder = write(tmp_path / "a", tensors, base_model_name_or_path="org/tiny")
    code, (found,) = checked(ostro, folder)
    a, b = (tensors[f"base_model.model.{NAMES[0]}.lora_{part}.weight"] for part in "AB")
    assert code == 0 and found["error"] is None and found["effect"] is None
    assert (found["kind"], found["base"], found["rank"]) == ("lora", "org/tiny", RANK)
    assert found["modules"] == 2 and len(found["generation"]) == 64
    assert found["norms"][NAMES[0]] == pytest.approx(float((2 * b @ a).norm()), rel=1e-4)
    shown = ostro("adapters", "check", folder)
    assert shown.code == 0 and "base org/tiny" in shown.out and found["generation"] in shown.out


def test_a_base_shows_effect(ostro: Ostro, tiny: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", factors(), base_model_name_or_path="org/tiny")
    code, (found,) = checked(ostro, folder, "-m", tiny)
    assert code == 0 and found["matched"] == 2 and found["effect"] > 0.01
    assert found["warnings"] == [] and found["unmatched"] == []
    shown = ostro("adapters", "check", folder, "-m", tiny).out
    assert "2 weights, 2 in the base" in shown and "effect" in shown


def test_another_base_is_warned_of(ostro: Ostro, tiny: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", factors(), base_model_name_or_path="org/other")
    code, (found,) = checked(ostro, folder, "-m", tiny)
    assert code == 0 and found["warnings"] == ["trained for org/other, not for tiny"]


def test_what_the_base_does_not_have_is_named(ostro: Ostro, tiny: str, tmp_path: Path) -> None:
    strange = "model.layers.7.self_attn.q_proj"
    folder = write(tmp_path / "a", factors((*NAMES, strange)))
    assert checked(ostro, folder)[0] == 0
    code, (found,) = checked(ostro, folder, "-m", tiny)
    assert code == 1 and strange in found["error"] and found["effect"] is None
    assert (found["matched"], found["unmatched"]) == (2, [strange])


def test_factors_of_another_width_are_refused(ostro: Ostro, tiny: str, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.down_proj"
    code, (found,) = checked(ostro, write(tmp_path / "a", factors((name,))), "-m", tiny)
    assert code == 1 and "do not fit" in found["error"]


def test_what_was_never_trained_is_refused(ostro: Ostro, tmp_path: Path) -> None:
    code, (found,) = checked(ostro, write(tmp_path / "a", factors(zero=NAMES)))
    assert code == 1 and "before it was trained" in found["error"]
    code, (found,) = checked(ostro, write(tmp_path / "b", factors(zero=NAMES[:1])))
    assert code == 0 and found["warnings"] == [f"1 of 2 products are zero: {NAMES[0]}"]


def test_adapters_with_equal_files_are_found(ostro: Ostro, tmp_path: Path) -> None:
    first = write(tmp_path / "a", factors())
    second = str(shutil.copytree(first, tmp_path / "b"))
    third = write(tmp_path / "c", factors(), lora_alpha=1)
    code, found = checked(ostro, first, second, third)
    assert code == 0 and [each["duplicates"] for each in found] == [[second], [first], []]


def test_one_that_is_refused_leaves_the_others(ostro: Ostro, tmp_path: Path) -> None:
    good, bad = write(tmp_path / "a", factors()), write(tmp_path / "b", factors(), r=5)
    code, found = checked(ostro, bad, good, str(tmp_path / "gone"))
    assert code == 1 and found[1]["error"] is None
    assert "rank" in found[0]["error"] and "no file or folder" in found[2]["error"]
    shown = ostro("adapters", "check", bad, good)
    assert shown.code == 1 and f"{good}: ok" in shown.out and "Traceback" not in shown.err


def test_members_of_an_x_lora_are_counted(ostro: Ostro, tiny: str, tmp_path: Path) -> None:
    write(tmp_path / "m0", factors(NAMES[:1]))
    write(tmp_path / "m1", factors())
    layer = "base_model.internal_xlora_classifier.layers.0"
    tensors = {f"{layer}.weight": torch.ones(2, WIDE), f"{layer}.bias": torch.ones(2)}
    config = {"peft_type": "XLORA", "hidden_size": WIDE, "adapters": {"0": "../m0", "1": "../m1"}}
    folder = write(tmp_path / "x", tensors, **config)
    code, (found,) = checked(ostro, folder, "-m", tiny)
    assert code == 0 and (found["kind"], found["members"], found["modules"]) == ("xlora", 2, 3)
    assert found["matched"] == 3 and found["effect"] > 0.01


def test_a_base_that_is_not_there_is_no_fault_of_the_adapter(ostro: Ostro, tmp_path: Path) -> None:
    ran = ostro("adapters", "check", write(tmp_path / "a", factors()), "-m", str(tmp_path / "gone"))
    assert ran.code > 1 and "gone" in ran.err
