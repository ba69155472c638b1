"""`ostro inspect`: what the headers say, without torch and without a byte of any weight."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tiny.model import CONFIG, change_config, make_weights

from ostro.core.load.open import report_precedence, title_of
from ostro.core.settings import Settings

WEIGHTS = make_weights()


@pytest.mark.process
def test_a_folder_is_described_without_torch(apart, tiny: str) -> None:
    ran = apart("inspect", tiny, "--json")
    assert ran.code == 0, ran.err
    assert "torch" not in ran.err.splitlines()[-1]
    found = json.loads(ran.out)
    assert found["path"] == "tiny" and found["architecture"] == "llama"
    assert found["config"] == CONFIG
    assert {t["name"]: tuple(t["shape"]) for t in found["tensors"]} == {
        name: tuple(tensor.shape) for name, tensor in WEIGHTS.items()
    }
    assert found["types"] == {"F32": len(WEIGHTS)}
    assert found["bytes"] == sum(tensor.nbytes for tensor in WEIGHTS.values())


@pytest.mark.process
def test_a_gguf_file_is_described_without_torch(apart, tiny_gguf: str) -> None:
    ran = apart("inspect", tiny_gguf, "--json")
    assert ran.code == 0, ran.err
    assert "torch" not in ran.err.splitlines()[-1]
    found = json.loads(ran.out)
    assert found["path"] == "tiny.gguf" and found["architecture"] == "llama"
    assert found["config"] is None
    assert found["metadata"]["llama.embedding_length"] == CONFIG["hidden_size"]
    assert "(302 items)" in found["metadata"]["tokenizer.ggml.tokens"]
    shapes = {t["name"]: t["shape"] for t in found["tensors"]}
    assert shapes["token_embd.weight"] == [CONFIG["vocab_size"], CONFIG["hidden_size"]]
    assert shapes["blk.1.ffn_down.weight"] == [CONFIG["hidden_size"], CONFIG["intermediate_size"]]
    assert found["bytes"] == sum(tensor.nbytes for tensor in WEIGHTS.values())


def test_the_default_output_is_a_table(ostro, tiny: str) -> None:
    ran = ostro("inspect", tiny)
    assert ran.code == 0
    assert "tiny: llama" in ran.out and '"hidden_size": 32' in ran.out
    lines = [line.split("│") for line in ran.out.splitlines() if "mlp.down_proj" in line]
    assert [[cell.strip() for cell in line[1:-1]] for line in lines] == [
        [f"model.layers.{i}.mlp.down_proj.weight", "32 x 48", "F32", "6,144"] for i in range(2)
    ]
    assert f"{len(WEIGHTS)} tensors ({len(WEIGHTS)} F32)" in ran.out


def test_a_model_that_is_not_local_has_the_name_of_its_reference(ostro, tmp_path: Path) -> None:
    assert ostro("inspect").out.startswith("starter: llama")
    cached = tmp_path / "snapshots" / "0123abcd"
    assert title_of(Settings(reference="minilm"), cached) == "minilm"
    assert title_of(Settings(reference="org/name:a.gguf"), cached) == "org/name:a.gguf"
    assert title_of(Settings(dummy_weights=str(cached)), cached) == "0123abcd"


@pytest.mark.parametrize("name", ["smollm2", "starter"])
def test_a_folder_that_hides_an_alias_is_reported(
    ostro, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog, name: str
) -> None:
    report_precedence.cache_clear()
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny, name)
    for _ in range(2):
        assert ostro("inspect", name).out.startswith(f"{name}: llama")
    said = [r.getMessage() for r in caplog.records if r.name == "ostro.core.load.open"]
    assert len(said) == 1 and f"./{name}, not the model" in said[0]
    caplog.clear()
    assert ostro("inspect", f"./{name}").code == 0
    assert not caplog.records


def test_names_stay_whole_where_a_program_reads(
    ostro, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = ostro("inspect", tiny).out
    assert all(name in out for name in WEIGHTS)


def test_a_folder_is_named_where_it_is_the_current_one(
    ostro, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny)
    assert ostro("inspect", ".").out.startswith("tiny: llama")


def test_unclaimed_checkpoints_are_described(ostro, tiny: str, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny, tmp_path / "strange")
    change_config(folder, architectures=["NobodyForCausalLM"], list=list(range(100)))
    ran = ostro("inspect", str(folder))
    assert ran.code == 0
    assert ran.out.startswith("strange: no plugin supports it")
    assert "model.layers.1.mlp.down_proj.weight" in ran.out


def test_markup_in_a_name_is_text(ostro, tiny: str, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny, tmp_path / "[red]m[bold]")
    change_config(folder, note="[blink]x[/]")
    ran = ostro("inspect", str(folder))
    assert ran.code == 0 and "[red]m[bold]" in ran.out and "[blink]x[/]" in ran.out


@pytest.mark.parametrize(
    ("spoil", "code", "message"),
    [
        (lambda m: (m / "config.json").write_text("{"), 4, "config.json: line 1"),
        (lambda m: (m / "model.safetensors").write_bytes(b"\x01" * 40), 5, "model.safetensors"),
        (lambda m: (m / "model.safetensors").unlink(), 5, "no installed checkpoint format"),
    ],
)
def test_malformed_files_are_errors(ostro, tiny: str, tmp_path: Path, spoil, code, message) -> None:
    folder = shutil.copytree(tiny, tmp_path / "m")
    spoil(folder)
    ran = ostro("inspect", str(folder))
    assert ran.code == code and message in ran.err and not ran.out
    assert ostro("inspect", tiny).code == 0


def test_the_model_is_the_first_word_or_an_option(ostro, tiny: str) -> None:
    assert ostro("inspect", "-m", tiny).out == ostro("inspect", tiny).out != ""
    assert ostro("inspect").out.startswith("starter: llama")
