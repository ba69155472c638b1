"""`pip install ostro` in bare environments, from the wheel and from the sdist.

A bare environment has ostro, its dependencies and theirs, as links to the packages of an existing
environment: no network is needed. `.ci/run` creates `.venv/second` with another Python.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ostro.core.native.build import NATIVE, VARIANTS, library_name
from ostro.core.native.variants import choose_variant, cpu_flags

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

ANSWER = ("run", "--quant", "afq2", "--raw", "-i", PROMPT, "--temperature", "0", "-n", "32")

pytestmark = pytest.mark.timeout(900)


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


def build(source: Path, into: Path, target: str = "wheel", **env: str) -> Path:
    """Build the wheel or the sdist of a source tree; OSTRO_CPU limits the variants of kernels."""
    pytest.importorskip("hatchling")
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", into, folder=source, **env)
    [built] = into.iterdir()
    return built


def kernels(wheel: Path) -> list[str]:
    """The paths of the native libraries in a wheel, below the folder of prebuilt ones."""
    folder = "ostro/core/native/prebuilt/"
    with zipfile.ZipFile(wheel) as archive:
        return sorted(n.removeprefix(folder) for n in archive.namelist() if n.startswith(folder))


@pytest.fixture(scope="module")
def variant() -> str:
    """The variant of this CPU that a wheel has kernels for."""
    variant, reason = choose_variant("", platform.machine(), cpu_flags())
    if variant in (None, NATIVE) or sys.platform != "linux" or shutil.which("g++") is None:
        pytest.skip(f"no variant is built for this machine: {reason}")
    return variant.name


@pytest.fixture(scope="module")
def wheel(variant: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout with kernels for this CPU alone."""
    return build(ROOT, tmp_path_factory.mktemp("wheel"), CXX="g++", OSTRO_CPU=variant)


def install(wheel: Path, python: Path, folder: Path) -> Path:
    """Install a wheel in a bare environment; return the folder of its commands."""
    run(python, "-m", "venv", folder / "env", folder=folder)
    commands = folder / "env" / "bin"
    [site] = (folder / "env").glob("lib/python*/site-packages")
    requirements = run(python, "-c", METADATA, wheel, folder=folder).splitlines()
    run(python, "-c", LINK, site, *requirements, folder=folder)
    # Without an index pip fails unless the environment has every dependency.
    run(commands / "python", "-m", "pip", "install", "-q", "--no-index", wheel, folder=folder)
    return commands


def test_the_wheel_needs_no_compiler(wheel: Path, tmp_path: Path) -> None:
    commands = install(wheel, Path(sys.executable), tmp_path)
    # The commands of the environment are all that there is.
    env = {"PATH": str(commands), "CXX": "", "OSTRO_CACHE": str(tmp_path / "cache")}
    lines = json.loads(run(commands / "ostro", "doctor", "--json", folder=tmp_path, **env))
    found = {line["subject"]: line["finding"] for line in lines}
    assert found["C++ compiler"] == "none" and found["native kernels"].endswith("prebuilt")
    answer = run(commands / "ostro", *ANSWER, folder=tmp_path, **env)
    assert not (tmp_path / "cache/native").exists()
    assert answer.strip()
    assert answer == run(commands / "ostro", *ANSWER, folder=tmp_path, **env, OSTRO_CPU="none")
    mapped = run(commands / "python", "-c", MAPPED, folder=tmp_path, **env).split()
    assert sum("/prebuilt/" in file for file in mapped) == 1
    assert sum("libgomp" in file for file in mapped) == 1


MAPPED = """
from pathlib import Path
from ostro.core.ops.rms_norm import native
print(*{line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()})
"""
"""Prints the files that a process has mapped, of which one is a native library."""


def test_prebuilt_kernels_run_on_old_systems(wheel: Path) -> None:
    """On those with glibc 2.28 (Debian 10, RHEL 8) and newer ones, as torch's own wheels do."""
    pytest.importorskip("auditwheel")
    shown = run(sys.executable, "-m", "auditwheel", "show", wheel, folder=wheel.parent)
    [minor] = re.findall(r'platform tag:\s+"manylinux_2_(\d+)_', shown)
    assert int(minor) <= 28


def test_prebuilt_kernels_use_the_openmp_runtime_of_torch(wheel: Path) -> None:
    """They name none: another one would be loaded beside it, with threads of its own."""
    with zipfile.ZipFile(wheel) as archive:
        libraries = [archive.read(name) for name in archive.namelist() if name.endswith(".so")]
    assert any(b"GOMP_parallel" in library for library in libraries)
    assert not any(b"libgomp" in library for library in libraries)


def test_a_wheel_of_an_unknown_variant_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="OSTRO_CPU='avx2': expected one of "):
        build(ROOT, tmp_path, CXX="g++", OSTRO_CPU="avx2")


@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel(wheel: Path, variant: str, tmp_path: Path) -> None:
    sdist = build(ROOT, tmp_path / "sdist", "sdist")
    shutil.unpack_archive(sdist, tmp_path)
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    contents = []
    for built in (wheel, build(source, tmp_path / "built", CXX="g++", OSTRO_CPU=variant)):
        with zipfile.ZipFile(built) as archive:
            contents.append({name: archive.read(name) for name in archive.namelist()})
    assert contents[0] == contents[1]
    assert "ostro/core/native/ostro.h" in contents[0]


@pytest.mark.slow
def test_a_wheel_has_every_kernel_for_every_variant(variant: str, tmp_path: Path) -> None:
    built = build(ROOT, tmp_path, CXX="g++")
    expected = sorted(
        f"{variant.name}/{library_name(source, variant)}"
        for folder in (ROOT / "src/ostro").iterdir()
        for source in folder.rglob("*.cpp")
        for variant in VARIANTS[platform.machine()]
    )
    assert kernels(built) == expected and len(expected) >= 17 * 4
    assert built.stat().st_size < 40e6


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parts[-3])
def test_a_wheel_without_kernels_answers_with_and_without_a_compiler(
    python: Path, tmp_path: Path
) -> None:
    """That of a machine without g++."""
    built = build(ROOT, tmp_path / "wheel", CXX="/nonexistent")
    assert built.name.endswith("-none-any.whl") and not kernels(built)
    commands = install(built, python, tmp_path)
    answers = {}
    for compiler in ("g++", "/nonexistent"):
        cache = tmp_path / "cache" / Path(compiler).name
        env = {"CXX": compiler, "OSTRO_CACHE": str(cache)}
        answers[compiler] = run(commands / "ostro", *ANSWER, folder=tmp_path, **env)
        assert any(cache.glob("native/*.so")) == (compiler == "g++")
    assert answers["g++"].strip() and answers["g++"] == answers["/nonexistent"]
