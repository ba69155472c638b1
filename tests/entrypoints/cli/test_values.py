"""Values of options that no model allows, and references that nothing has: before loading."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny.model import make_model

from ostro.core.errors import ModelNotFound, UsageError
from ostro.core.load import model
from ostro.entrypoints.cli import main
from ostro.entrypoints.cli.options import check_ranges

Command = Callable[..., int]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_model(folder / "m")
    (folder / "a.wav").write_bytes(b"x")
    return folder


@pytest.fixture
def ostro(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command in the folder of the model; no weights may be read."""

    def fail(*arguments: Any) -> None:
        raise AssertionError("the weights are read")

    def run(*words: str) -> int:
        try:
            return main(list(words))
        except SystemExit as left:
            return left.code if isinstance(left.code, int) else 1

    monkeypatch.chdir(folder)
    monkeypatch.setattr(model, "read_weights", fail)
    return run


COMMANDS = {
    "run": ("run", "-m", "m", "-i", "hi"),
    "embed": ("embed", "-m", "m", "text"),
    "rerank": ("rerank", "-m", "m", "q", "d"),
    "draw": ("draw", "-m", "m", "p", "-o", "x.png"),
    "speak": ("speak", "-m", "m", "p", "-o", "x.wav"),
    "transcribe": ("transcribe", "-m", "m", "a.wav"),
    "bench": ("bench", "-m", "m"),
    "serve": ("serve", "-m", "m", "--port", "0"),
}
SHARED = (
    "--context 0",
    "--max-seqs 0",
    "--memory x",
    "--memory -1",
    "--device gpu",
    "--threads 0",
    "--quant zzz",
)
ADAPTERS = (
    "--adapter-slots -1",
    "--adapter-memory x",
    "--max-adapters -1",
    "--max-adapter-rank 0",
    "--adapter bad",
)
VALUES = {
    "run": (
        "--temperature -1",
        "--temperature nan",
        "--top-k -2",
        "--top-p 2",
        "--min-p -1",
        "--repetition-penalty 0",
        "-n 0",
        "-n -1",
        "--choices 0",
        "--choices 1000",
        "--logprobs 99 --json",
        "--logprobs -1 --json",
        "--chat-template nothere",
        *ADAPTERS,
        *SHARED,
    ),
    "embed": ("--dimensions 0", "-o x.txt", "-o nothere/x.npy", "--context 0", "--memory x"),
    "rerank": ("--top 0", "--context 0"),
    "draw": (
        "--steps 0",
        "--guidance nan",
        "--seed -1",
        "-n 0",
        "--previews -1",
        "--size 0x0",
        "--strength 1",
        "-o nothere/x.png",
        "--context 0",
    ),
    "speak": ("--temperature -1", "--top-p 2", "--guidance 0", "--max-seconds -1", "--seed -1"),
    "transcribe": ("--temperature -1", "--temperature 3"),
    "bench": ("-p 0", "-n 0", "-r 0", "--concurrency 0", "--with-adapters 2 --with-rank 0"),
    "serve": (*ADAPTERS, "--context 0", "--memory x", "--threads 0"),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize(("name", "words"), [(n, words) for n in VALUES for words in VALUES[n]])
def test_a_value_out_of_range_is_refused_before_loading(
    name: str, words: str, ostro: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ostro(*COMMANDS[name], *words.split()) == UsageError.exit_code
    assert "ostro" in capsys.readouterr().err


NOWHERE = [
    *(f"{command} -m nothere {rest}" for command, rest in [("run", "-i x"), ("bench", "")]),
    "serve -m nothere --port 0",
    "embed -m nothere x",
    "rerank -m nothere q d",
    "transcribe -m nothere a.wav",
    "draw -m nothere p -o x.png",
    "speak -m nothere p -o x.wav",
    "quality -m nothere --quant q8_0",
    "quantize -m nothere --to gguf -o out",
    "merge -m m --adapter nothere -o out",
    "adapters check nothere",
    "fit nothere",
    "tune -m nothere",
    "pull nothere",
    "show nothere",
    "rm nothere",
    "inspect nothere",
    "models --explain nothere",
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("words", NOWHERE)
def test_a_reference_that_is_not_found_has_one_exit_code(words: str, ostro: Command) -> None:
    assert ostro(*words.split()) == ModelNotFound.exit_code == 3


def test_ranges() -> None:
    check_ranges(argparse.Namespace(a=1, b=None), {"a": (1, 2), "b": (5, 6), "c": (7, 8)})
    with pytest.raises(UsageError, match="--top-p nan: expected 0 to 1"):
        check_ranges(argparse.Namespace(top_p=float("nan")), {"top_p": (0, 1)})
