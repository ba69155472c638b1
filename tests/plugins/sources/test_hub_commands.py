"""`ostro pull`, `list`, `show` and `rm` on a cache of the fake hub."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from huggingface_hub import constants
from tiny.model import make_gguf

from ostro.core.plugins.manager import PluginManager
from ostro.entrypoints.cli import hub_cache, main
from ostro.entrypoints.cli.list_models import print_rows

if TYPE_CHECKING:
    from tests.plugins.sources.conftest import Hub

SPACE = "org/tiny-GGUF"


class Terminal(io.StringIO):
    """Standard input on a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return make_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf").read_bytes()


@pytest.fixture
def pulled(hub: Hub, gguf: bytes, capsys: pytest.CaptureFixture[str]) -> Path:
    """The path of a model that `ostro pull` downloaded."""
    hub.models[SPACE] = {"tiny-Q8_0.gguf": gguf, "README.md": b"x"}
    assert main(["pull", SPACE]) == 0
    return Path(capsys.readouterr().out.strip())


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    capsys.readouterr()
    assert main(["list", "--json"]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


def test_a_pulled_model_is_listed_and_shown(
    hub: Hub, pulled: Path, gguf: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pulled.read_bytes() == gguf
    (row,) = listed(capsys)
    assert (row["model"], row["formats"], row["bytes"]) == (SPACE, ["gguf Q8_0"], len(gguf))
    asked = len(hub.asked)
    assert main(["show", SPACE, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["architecture"], shown["revisions"]) == ("llama", row["revisions"])
    assert shown["parameters"] > 1000 and shown["context"] and "F32" in " ".join(shown["tensors"])
    assert main(["show", str(pulled)]) == 0
    assert "llama" in capsys.readouterr().out
    assert len(hub.asked) == asked


def test_a_second_pull_downloads_nothing(hub: Hub, pulled: Path) -> None:
    hub.asked.clear()
    assert main(["pull", SPACE, "--offline"]) == 0
    assert main(["pull", SPACE]) == 0
    assert not hub.fetched()


def test_an_interrupted_pull_says_how_to_continue(
    hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PluginManager, "locate", interrupt)
    assert main(["pull", SPACE]) == 130
    assert "run the command again" in capsys.readouterr().err


@pytest.mark.slow
def test_progress_is_shown_on_terminals_only(hub: Hub, gguf: bytes, tmp_path: Path) -> None:
    hub.models[SPACE] = {"tiny-Q8_0.gguf": gguf}
    outputs = []
    for name in ("piped", "terminal"):
        terminal, end = pty.openpty()
        termios.tcsetwinsize(end, (24, 80))
        env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        env |= {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / name)}
        ran = subprocess.run(
            [sys.executable, "-m", "ostro", "pull", SPACE],
            env={**env, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if name == "piped" else end,
            timeout=100,
            check=True,
        )
        assert Path(ran.stdout.decode().strip()).read_bytes() == gguf
        os.close(end)
        outputs.append(ran.stderr if name == "piped" else os.read(terminal, 65536))
        os.close(terminal)
    assert not outputs[0]
    assert b"100%" in outputs[1]


def test_rm_asks_and_deletes(
    pulled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["rm", SPACE]) == 2
    assert "add --yes" in capsys.readouterr().err and pulled.exists()
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert main(["rm", SPACE]) == 1
    err = capsys.readouterr().err
    assert "tiny-Q8_0.gguf" in err and "KB? [y/N]" in err and pulled.exists()
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert main(["rm", SPACE]) == 0
    assert not pulled.exists() and not listed(capsys)


def test_rm_deletes_one_revision(
    hub: Hub, pulled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.plugins.sources.conftest.SHA", "f" * 40)
    assert main(["pull", SPACE]) == 0
    (row,) = listed(capsys)
    assert row["revisions"] == sorted([pulled.parent.name, "f" * 40])
    assert main(["rm", f"{SPACE}@{'f' * 8}", "--yes"]) == 0
    (row,) = listed(capsys)
    assert row["revisions"] == [pulled.parent.name] and pulled.exists()


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["rm", "org/tiny"], 3, "nearest: org/tiny-GGUF"),
        (["rm", f"{SPACE}@nothing", "--yes"], 3, "has no revision nothing"),
        (["rm", f"{SPACE}:tiny-Q8_0.gguf", "--yes"], 2, "whole revisions"),
        (["rm", "smollm2", "--yes"], 3, "SmolLM2-1.7B-Instruct-GGUF is not in the cache"),
        (["show", "org/absent"], 3, "`ostro list`"),
        (["pull", "org/absent"], 3, "does not exist"),
        (["pull", "org/absent", "--offline"], 3, "not in the cache"),
    ],
)
def test_what_is_not_at_hand_is_explained(
    pulled: Path, words: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    assert text in capsys.readouterr().err and pulled.exists()


def test_a_cache_that_does_not_exist_is_empty(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "none"))
    assert not listed(capsys)


def test_aliases_are_listed_with_licences(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--aliases"]) == 0
    out = capsys.readouterr().out
    assert all(name in out and row.licence in out for name, row in hub_cache.aliases().items())


def test_lists_fit_the_terminal_and_are_separated_by_tabs_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names, rows = ("alias", "model", "about"), [("tiny", "org/" + "m" * 26, ""), ("b", "c", "d e")]
    print_rows(names, rows)
    assert capsys.readouterr().out == f"alias\tmodel\tabout\ntiny\t{rows[0][1]}\t\nb\tc\td e\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    print_rows(names, rows)
    assert f"│ tiny  │ {rows[0][1]} │" in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "40")
    print_rows(names, rows)
    assert capsys.readouterr().out == f"tiny\n  model: {rows[0][1]}\nb\n  model: c\n  about: d e\n"


@pytest.mark.parametrize(
    ("names", "config", "formats"),
    [
        (
            {"a-Q4_K_M.gguf", "mmproj-f16.gguf", "a-IQ2_XS.gguf"},
            None,
            ["gguf IQ2_XS", "gguf Q4_K_M"],
        ),
        ({"plain.gguf"}, None, ["gguf"]),
        ({"model.safetensors"}, {"torch_dtype": "bfloat16"}, ["safetensors bfloat16"]),
        (
            {"model.safetensors"},
            {"quantization_config": {"quant_method": "gptq"}},
            ["safetensors gptq"],
        ),
        ({"model.safetensors"}, {"quantization_config": 3}, ["safetensors"]),
        ({"adapter_model.safetensors", "adapter_config.json"}, None, ["adapter"]),
        ({"pytorch_model.bin", "config.json"}, None, ["pickle"]),
        ({"config.json"}, None, ["no weights"]),
    ],
)
def test_formats_are_read_from_names_and_config(
    names: set[str], config: object, formats: list[str], tmp_path: Path
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert sorted(hub_cache.formats_of(names, tmp_path)) == formats
