"""A GGUF file written in fewer bits: what its source says, in the blocks that were asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tiny.model import make_gguf, make_model

import ostro
from ostro.core.errors import CheckpointError, Unsupported, UsageError
from ostro.core.settings import ProgressCallback
from ostro.entrypoints.cli import main

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf(tmp_path_factory.mktemp("float") / "tiny.gguf")


def words(source: Path, folder: Path, *more: str) -> list[str]:
    return ["quantize", "-m", str(source), "--to", "gguf", "-o", str(folder), *more]


def quantize(source: Path, folder: Path, *more: str) -> Path:
    assert main(words(source, folder, *more)) == 0
    (file,) = folder.rglob("*.gguf")
    return file


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["q8_0", "q4_0", "iq4_nl", "mxfp4"])
def test_it_is_what_quantizing_at_load_gives(name: str, source: Path, tmp_path: Path) -> None:
    file = quantize(source, tmp_path / "out", "--quant", name)
    assert file.name == f"tiny-{name}.gguf" and file.stat().st_size < source.stat().st_size
    with (
        ostro.load(file, exact=True, dtype="float32") as written,
        ostro.load(source, quant=name, exact=True, dtype="float32") as loaded,
    ):
        assert written.generate("hello", **GREEDY) == loaded.generate("hello", **GREEDY)
        np.testing.assert_array_equal(written.logits([5, 6, 7]), loaded.logits([5, 6, 7]))


def test_everything_else_is_as_it_was(source: Path, tmp_path: Path) -> None:
    file = quantize(source, tmp_path / "out", "--quant", "q8_0", "--topology", "o_proj = float")
    theirs, ours = gguf.GGUFReader(source), gguf.GGUFReader(file)
    new = {"general.file_type", "general.quantization_version"}
    assert theirs.fields.keys() | new == ours.fields.keys()
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF.") and key not in new:
            assert ours.fields[key].contents() == field.contents()
            assert ours.fields[key].types == field.types
    kinds = {tensor.name: tensor.tensor_type.name for tensor in ours.tensors}
    assert kinds["blk.0.attn_q.weight"] == "Q8_0" and kinds["blk.0.attn_output.weight"] == "F32"
    assert kinds["blk.0.ffn_down.weight"] == "F32"  # rows of 48 are no whole blocks
    assert kinds["blk.0.attn_norm.weight"] == "F32"
    for a, b in zip(theirs.tensors, ours.tensors, strict=True):
        assert a.name == b.name
        if b.tensor_type.name == "F32":
            np.testing.assert_array_equal(a.data, b.data)


def test_a_file_is_never_overwritten(source: Path, tmp_path: Path, capsys: Any) -> None:
    quantize(source, tmp_path, "--quant", "q8_0")
    assert main(words(source, tmp_path, "--quant", "q8_0")) == UsageError.exit_code
    assert "exists; remove it" in capsys.readouterr().err


def test_a_full_disk_leaves_nothing_behind(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    given = words(source, tmp_path, "--quant", "q8_0")
    assert main(given) == CheckpointError.exit_code
    assert "No space left on device" in capsys.readouterr().err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    monkeypatch.undo()
    assert main(given) == 0


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        (["--quant", "f8q8"], Unsupported, "is not a ggml format"),
        ([], UsageError, "no format to quantize to"),
        (["--quant", "q8_0", "--to", "tar"], UsageError, "unknown file format"),
        (["--quant", "q8_0", "--speculate", "ngram"], UsageError, "ngram: expected heads, which"),
    ],
)
def test_what_cannot_be_is_refused(
    more: list[str], error: Any, message: str, source: Path, tmp_path: Path, capsys: Any
) -> None:
    assert main(words(source, tmp_path, *more)) == error.exit_code
    assert message in capsys.readouterr().err


def test_several_formats_go_to_folders_of_their_own(source: Path, tmp_path: Path) -> None:
    assert main(words(source, tmp_path, "--quant", "q8_0,q4_0")) == 0
    found = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.gguf"))
    assert found == ["q4_0/tiny-q4_0.gguf", "q8_0/tiny-q8_0.gguf"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["q8_0", "f8q8", "q4_0"])
def test_a_uqff_folder_is_what_quantizing_at_load_gives(name: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "tiny")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    out = tmp_path / "out"
    given = ["quantize", "-m", str(folder), "--to", "uqff", "-o", str(out), "--quant", name]
    assert main(given) == 0
    assert {path.name for path in out.iterdir()} >= {
        "additional_chat_templates",
        f"{name}-0.uqff",
        "residual.safetensors",
        "config.json",
        "tokenizer.json",
        "uqff_report.json",
    }
    with (
        ostro.load(out, exact=True, dtype="float32") as written,
        ostro.load(folder, quant=name, exact=True, dtype="float32") as loaded,
    ):
        np.testing.assert_array_equal(written.logits([5, 6, 7]), loaded.logits([5, 6, 7]))
        assert written.generate("hello", **GREEDY) == loaded.generate("hello", **GREEDY)
    assert main(given) == UsageError.exit_code


def test_uqff_is_not_made_of_a_gguf_file(source: Path, tmp_path: Path, capsys: Any) -> None:
    given = ["quantize", "-m", str(source), "--to", "uqff", "-o", str(tmp_path), "--quant", "q4_0"]
    assert main(given) == Unsupported.exit_code
    assert "--to gguf" in capsys.readouterr().err


@pytest.mark.slow
def test_the_search_of_a_budget_shows_its_stages(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    @contextmanager
    def stages() -> Iterator[ProgressCallback]:
        yield lambda stage, done, total: found.append(stage)

    monkeypatch.setattr("ostro.entrypoints.cli.stages.stages", stages)
    quantize(source, tmp_path, "--quant", "20bpw")
    assert {"generating texts for calibration", "measuring sensitivities"} <= set(found)
