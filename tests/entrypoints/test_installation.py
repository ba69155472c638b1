"""`pip install ostro` in bare environments, from the wheel and from the sdist.

A bare environment has ostro, its dependencies and theirs, as links to the packages of an existing
environment: no network is needed. `.ci/run` creates `.venv/second` with another Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECOND = ROOT / ".venv" / "second" / "bin" / "python"
PYTHONS = [Path(sys.executable), *([SECOND] if SECOND.exists() else [])]
PROMPT = "zebra 17 quantum"  # answered differently without rounding of activations

LINK = """
import sys
from importlib.metadata import distribution
from pathlib import Path
from packaging.requirements import Requirement

site, todo, seen = Path(sys.argv[1]), sys.argv[2:], set()
while todo:
    made = Requirement(todo.pop())
    extras = made.extras or {""}
    if str(made) in seen or made.marker and not made.marker.evaluate({"extra": ""}):
        continue
    seen.add(str(made))
    found = distribution(made.name)
    for name in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
        if name != "__pycache__" and not (site / name).exists():
            (site / name).symlink_to(found.locate_file(name))
    for line in found.requires or ():
        need = Requirement(line)
        if need.marker is None or any(need.marker.evaluate({"extra": e}) for e in extras):
            need.marker = None
            todo.append(str(need))
"""
"""Links a requirement's distribution, and the distributions that it requires, into a folder."""

METADATA = """
import sys
from email.parser import BytesParser
from zipfile import ZipFile
with ZipFile(sys.argv[1]) as wheel:
    [name] = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    print(*BytesParser().parsebytes(wheel.read(name)).get_all("Requires-Dist"), sep="\\n")
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run(*command: str | Path, folder: Path, **env: str) -> str:
    """Run a command without what would let Python find this checkout; return its output."""
    bare = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "OSTRO_"))}
    ran = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**bare, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel that is built from the checkout, and the one that is built from the sdist."""
    home = tmp_path_factory.mktemp("build")
    run(sys.executable, "-m", "venv", home / "env", folder=home)
    python = home / "env" / "bin" / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    try:
        run(*pip, "install", "-q", "hatchling>=1.27", folder=home)
    except AssertionError:
        pytest.skip("hatchling cannot be installed: is there no package index in reach?")
    left = shutil.ignore_patterns(".venv", ".git", ".*_cache", "__pycache__", "tests", "dist")
    source = shutil.copytree(ROOT, home / "source", ignore=left, symlinks=True)
    run(python, "-m", "hatchling", "build", "-t", "sdist", "-d", home, folder=source)
    [sdist] = home.glob("*.tar.gz")
    made = []
    for name, origin in (("direct", source), ("sdist", sdist)):
        words = ("wheel", "-q", "--no-deps", "--no-build-isolation", "-w", home / name, origin)
        run(*pip, *words, folder=home)
        made += (home / name).glob("*.whl")
    direct, from_sdist = made
    return direct, from_sdist


def test_the_sdist_builds_the_same_wheel(wheels: tuple[Path, Path]) -> None:
    contents = []
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            contents.append({name: archive.read(name) for name in archive.namelist()})
    assert contents[0] == contents[1]
    assert "ostro/core/native/ostro.h" in contents[0]


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parts[-3])
def test_a_bare_environment_answers_the_same_with_and_without_a_compiler(
    wheels: tuple[Path, Path], python: Path, tmp_path: Path
) -> None:
    run(python, "-m", "venv", tmp_path / "env", folder=tmp_path)
    commands = tmp_path / "env" / "bin"
    [site] = (tmp_path / "env").glob("lib/python*/site-packages")
    requirements = run(python, "-c", METADATA, wheels[1], folder=tmp_path).splitlines()
    run(python, "-c", LINK, site, *requirements, folder=tmp_path)
    # Without an index pip fails unless the environment has every dependency.
    run(commands / "python", "-m", "pip", "install", "-q", "--no-index", wheels[1], folder=tmp_path)
    answers = {}
    for compiler in ("g++", "/nonexistent"):
        cache = tmp_path / "cache" / Path(compiler).name
        words = ("run", "--quant", "afq2", "--raw", "-i", PROMPT, "--temperature", "0", "-n", "32")
        env = {"CXX": compiler, "OSTRO_CACHE": str(cache)}
        answers[compiler] = run(commands / "ostro", *words, folder=tmp_path, **env)
        assert any(cache.glob("native/*.so")) == (compiler == "g++")
    assert answers["g++"].strip() and answers["g++"] == answers["/nonexistent"]
