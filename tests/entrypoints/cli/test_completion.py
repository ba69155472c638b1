"""Completion scripts: their syntax, and what the shells complete."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ostro.entrypoints.cli import COMMANDS, main
from ostro.entrypoints.cli.completion import SCRIPTS

TRY = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_ostro
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The script of each shell, in a file."""
    folder, found = tmp_path_factory.mktemp("completion"), {}
    for shell in SCRIPTS:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert main(["completion", shell]) == 0
        found[shell] = folder / f"ostro.{shell}"
        found[shell].write_text(out.getvalue())
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with a cache of one model, a file and a folder."""
    (tmp_path / "cache/models--Qwen--Qwen3-0.6B").mkdir(parents=True)
    (tmp_path / "model.gguf").touch()
    return tmp_path


def completed(script: Path, folder: Path, *words: str) -> set[str]:
    """What bash offers for the last word."""
    ran = subprocess.run(
        ["bash", "--norc", "-c", TRY, "bash", str(script), *words],
        cwd=folder,
        env={**os.environ, "HF_HUB_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert not ran.stderr
    return set(ran.stdout.split())


@pytest.mark.parametrize("shell", SCRIPTS)
def test_scripts_are_complete(scripts: dict[str, Path], shell: str) -> None:
    text = scripts[shell].read_text()
    assert all(name in text for name in [*COMMANDS, "plugin", "smollm2", "bfloat16"])
    assert all(name in text for name in ("temperature", "help-all", "kv-dtype", "drain-timeout"))


@pytest.mark.process
@pytest.mark.parametrize("shell", SCRIPTS)
def test_shells_parse_the_scripts(scripts: dict[str, Path], shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", scripts[shell]], check=True, timeout=60)


def test_bash_completes_a_command(scripts: dict[str, Path], folder: Path) -> None:
    assert completed(scripts["bash"], folder, "ostro", "tran") == {"transcribe"}


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "--dty"], {"--dtype"}),
        (["run", "--dtype", "b"], {"bfloat16"}),
        (["run", "smol"], {"smollm2", "smolvlm"}),
        (["run", "Qw"], {"Qwen/Qwen3-0.6B"}),
        (["serve", "--also", "mo"], {"model.gguf"}),
        (["rm", "mo"], {"model.gguf"}),
        (["run", "smollm2", "mo"], {"model.gguf"}),
        (["run", "--seed", ""], set()),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["plugin", "ne"], {"new"}),
        (["plugin", "new", "x", "--kin"], {"--kind"}),
        (["list", ""], set()),
    ],
)
def test_bash_completes(
    scripts: dict[str, Path], folder: Path, words: list[str], expected: set[str]
) -> None:
    assert completed(scripts["bash"], folder, "ostro", *words) == expected


@pytest.mark.process
def test_a_tab_in_bash_completes(scripts: dict[str, Path], folder: Path) -> None:
    terminal, end = pty.openpty()
    bash = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        cwd=folder,
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
    )
    os.close(end)
    try:
        os.write(terminal, f"source {scripts['bash']}; echo rea''dy\n".encode())
        assert b"ready" in read_until(terminal, b"ready")
        os.write(terminal, b"ostro transc\t--langu\t")
        assert b"transcribe --language " in read_until(terminal, b"--language ")
    finally:
        bash.kill()
        bash.wait()
        os.close(terminal)


def read_until(terminal: int, text: bytes, seconds: float = 120) -> bytes:
    """The output of a terminal up to a text; shorter if the text does not come in time."""
    found, end = b"", time.monotonic() + seconds
    while text not in found and time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            found += os.read(terminal, 65536)
    return found
