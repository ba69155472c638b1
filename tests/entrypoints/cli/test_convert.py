"""`ostro quantize --to gguf` from model folders, and from files that are quantized already."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tiny.model import TEMPLATE, make_gguf, make_model

import ostro
from ostro.core.errors import CheckpointError, TokenizerError, Unsupported, UsageError
from ostro.entrypoints.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("hub") / "tiny")


def words(source: Path, out: Path, *more: str) -> list[str]:
    return ["quantize", "-m", str(source), "--to", "gguf", "-o", str(out), *more]


def convert(source: Path, out: Path, *more: str) -> Path:
    assert main(words(source, out, *more)) == 0
    (file,) = out.glob("*.gguf")
    return file


def formats(file: Path) -> dict[str, str]:
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(file).tensors}


def key(file: Path, name: str) -> Any:
    return gguf.GGUFReader(file).fields[name].contents()


def test_a_folder_becomes_a_file_of_the_same_model(folder: Path, tmp_path: Path) -> None:
    file = convert(folder, tmp_path)
    assert file.name == "tiny-F32.gguf" and key(file, "general.file_type") == 0
    assert key(file, "tokenizer.chat_template") == TEMPLATE
    with ostro.load(folder, dtype="float32") as ours, ostro.load(file, dtype="float32") as written:
        np.testing.assert_array_equal(written.logits([5, 6, 7]), ours.logits([5, 6, 7]))
    a, b = ostro.tokenizer(folder), ostro.tokenizer(file)
    text = "the way of the world, 12 times\n"
    assert a.encode(text) == b.encode(text) and a.eos_ids == b.eos_ids


def test_a_float_format_is_selected_by_dtype(folder: Path, tmp_path: Path) -> None:
    file = convert(folder, tmp_path, "--dtype", "bfloat16")
    assert file.name == "tiny-BF16.gguf" and key(file, "general.file_type") == 32
    assert formats(file)["blk.0.attn_q.weight"] == "BF16"
    assert formats(file)["blk.0.attn_norm.weight"] == "F32"


def test_the_working_folder_has_a_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert convert(Path("."), tmp_path / "out").name == "tiny-F32.gguf"


def test_a_folder_is_quantized_in_the_same_pass(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = convert(folder, tmp_path, "--quant", "q4_0")
    assert file.name == "tiny-q4_0.gguf" and key(file, "general.file_type") == 2
    assert formats(file)["blk.0.attn_q.weight"] == "Q4_0"
    assert formats(file)["token_embd.weight"] == "Q5_1"  # rows of 32 are no blocks of q6k
    table = capsys.readouterr().err
    assert "48 columns are not a multiple" in table and "F32     Q4_0" in table


def test_a_name_without_its_format_is_refused(folder: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(words(folder, tmp_path, "--quant", "q4k")) == UsageError.exit_code
    said = capsys.readouterr().err
    assert "no tensor of tiny can be q4k (whose blocks are Q4_K): 32 columns are not a" in said
    assert not list(tmp_path.iterdir())


def test_quantized_weights_are_not_quantized_again_unasked(tmp_path: Path, capsys: Any) -> None:
    once = convert(make_gguf(tmp_path / "tiny.gguf"), tmp_path / "once", "--quant", "q8_0")
    again = words(once, tmp_path / "again", "--quant", "q4_0")
    assert main(again) == UsageError.exit_code
    assert "quantized already" in (said := capsys.readouterr().err) and "of Q8_0" in said
    assert not (tmp_path / "again").exists()
    assert main([*again, "--allow-requantize"]) == 0
    assert "Q8_0    Q4_0" in capsys.readouterr().err
    (file,) = (tmp_path / "again").iterdir()
    assert file.name == "tiny-q8_0-q4_0.gguf" and key(file, "general.file_type") == 2
    assert formats(file)["blk.0.attn_q.weight"] == "Q4_0"


def test_a_mixture_without_its_format_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(folder, tmp_path, "--quant", "q4_k_m")) == UsageError.exit_code
    assert "no tensor of tiny can be Q4_K_M (whose blocks are Q4_K)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({"hidden_act": "relu"}, "mlp.act is 'relu', the file states 'silu'"),
        (
            {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 8},
            "self_attn.window is 8, the file states 0",
        ),
    ],
    ids=["activation", "window"],
)
def test_a_config_without_a_key_in_gguf_is_refused(
    config: dict[str, Any], fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make_model(tmp_path / "tiny", **config)
    assert main(words(source, tmp_path / "out")) == CheckpointError.exit_code
    said = capsys.readouterr().err
    assert "a GGUF file of llama cannot state the config of tiny:" in said and fault in said
    assert not list((tmp_path / "out").iterdir())


def test_a_tokenizer_without_a_name_in_gguf_is_refused(tmp_path: Path, capsys: Any) -> None:
    source = make_model(tmp_path / "tiny")
    file = source / "tokenizer.json"
    backend = ostro.tokenizer(source).backend
    from tokenizers import pre_tokenizers

    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("q", "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.save(str(file))
    assert main(words(source, tmp_path / "out")) == TokenizerError.exit_code
    assert "GGUF files have no name for its pre-tokenizer ('q'," in capsys.readouterr().err


def test_the_gguf_package_is_named_if_it_is_missing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **more: Any) -> Any:
        if name == "gguf":
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.delitem(sys.modules, "gguf")
    monkeypatch.setattr(builtins, "__import__", missing)
    assert main(words(folder, tmp_path)) == Unsupported.exit_code
    assert "pip install 'ostro[gguf]'" in capsys.readouterr().err
