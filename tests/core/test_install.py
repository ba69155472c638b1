"""install.sh, with programs in the place of Python and uv that record their arguments."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PYTHON = """#!/bin/sh
case "$1 $2" in
  "-c import sys"*) exit ${OLD:-0} ;;
  "-c import importlib"*) echo 2.13.0 ;;
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip") shift 2 && echo "pip $*" >> "$LOG" ;;
esac
"""
UV = '#!/bin/sh\necho "uv $*" >> "$LOG"\nexit ${UV_FAILS:-0}\n'


class Installer:
    """Runs install.sh in a folder, with a PATH that has a Python, uv, and the usual commands."""

    def __init__(self, home: Path) -> None:
        self.home, self.log = home, home / "log"
        (home / "bin").mkdir()
        names = ("python3", "python3.13", "python3.12", "python3.11", "uv")
        for name in names:
            (home / "bin" / name).write_text(UV if name == "uv" else PYTHON)
            (home / "bin" / name).chmod(0o755)

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        home = {"HOME": str(self.home), "LOG": str(self.log)}
        return subprocess.run(
            ["sh", str(ROOT / "install.sh"), *words],
            env={"PATH": f"{self.home / 'bin'}:/usr/bin:/bin", **home, **env},
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def installer(tmp_path: Path) -> Installer:
    return Installer(tmp_path)


def test_uv_selects_torch_and_pip_installs_the_rest(installer: Installer) -> None:
    ran = installer.run("-c", "pins.txt", "-e", ".", OSTRO_VENV="env")
    assert ran.returncode == 0, ran.stderr
    assert installer.calls == [
        "uv pip install --quiet --python env/bin/python -c pins.txt --torch-backend auto torch",
        "pip install --quiet -c pins.txt -e .",
    ]
    assert ran.stdout == "torch 2.13.0, chosen by uv --torch-backend auto\n"


def test_pip_replaces_uv_only_if_no_build_was_asked_for(installer: Installer) -> None:
    ran = installer.run(OSTRO_VENV="env", UV_FAILS="1")
    assert ran.returncode == 0 and "pip's default build" in ran.stdout, ran.stderr
    assert installer.calls[1:] == ["pip install --quiet torch", "pip install --quiet ostro"]
    installer.log.unlink()
    assert installer.run(OSTRO_VENV="env", OSTRO_TORCH="cu130", UV_FAILS="1").returncode == 1
    assert len(installer.calls) == 1 and "--torch-backend cu130 torch" in installer.calls[0]


def test_the_command_is_linked(installer: Installer) -> None:
    ran = installer.run()
    home = installer.home
    link = home / ".local" / "bin" / "ostro"
    assert link.readlink() == home / ".local" / "share" / "ostro" / "bin" / "ostro"
    assert f"add {link.parent} to PATH" in ran.stdout


@pytest.mark.parametrize("env", [{"OLD": "1"}, {"PYTHON": "/nonexistent"}], ids=["old", "missing"])
def test_a_python_that_is_too_old_is_refused(installer: Installer, env: dict[str, str]) -> None:
    ran = installer.run(**env)
    assert ran.returncode == 1 and "needs Python 3.11 or newer" in ran.stderr
    assert not installer.log.exists()


def test_the_image_gets_every_file_that_the_wheel_is_built_from() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    kept = {line[1:] for line in ignore if line.startswith("!")}
    links = {path.name for path in (ROOT / "src" / "ostro").iterdir() if path.is_symlink()}
    files = {"src", "pyproject.toml", "README.md", "LICENSE", "constraints.txt", "install.sh"}
    assert kept == links | files


def test_the_devcontainer_runs_a_target_of_the_makefile() -> None:
    config = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    program, target = config["postCreateCommand"].split()
    assert program == "make" and f"\n{target}: " in (ROOT / "Makefile").read_text()
