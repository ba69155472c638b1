"""Fixtures that make plugin projects importable as if installed, and run their tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ostro.entrypoints.cli import main

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "docs" / "examples" / "plugins"


@dataclass(frozen=True)
class Said:
    """The output and exit code of `ostro plugin`."""

    code: int
    out: str
    err: str


Plugin = Callable[..., Said]
Install = Callable[[Path], Path]


@pytest.fixture
def plugin(capsys: pytest.CaptureFixture[str]) -> Plugin:
    """Run `ostro plugin` in this process."""

    def run(*words: object) -> Said:
        capsys.readouterr()
        try:
            code = main(["plugin", *map(str, words)])
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        return Said(code, *capsys.readouterr())

    return run


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Return a folder with a project, laid out as if its wheel were installed there."""

    def run(project: Path) -> Path:
        site = tmp_path / f"site-{project.name}"
        site.mkdir()
        said = tomllib.loads((project / "pyproject.toml").read_text())["project"]
        points = said["entry-points"]["ostro"]
        for module in points.values():
            (site / module).symlink_to(project / module)
        info = site / f"{said['name'].replace('-', '_')}-{said['version']}.dist-info"
        info.mkdir()
        [requirement] = said["optional-dependencies"]["ostro"]
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.4\nName: {said['name']}\nVersion: {said['version']}\n"
            f"Requires-Dist: {requirement}; extra == 'ostro'\n"
        )
        lines = "".join(f"{name} = {module}\n" for name, module in points.items())
        (info / "entry_points.txt").write_text(f"[ostro]\n{lines}")
        return site

    return run


@pytest.fixture
def installed(install: Install, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """As `install`, with the folder on sys.path until the test ends."""
    before = set(sys.modules)

    def run(project: Path) -> Path:
        site = install(project)
        monkeypatch.syspath_prepend(str(site))
        return site

    yield run
    for name in set(sys.modules) - before:
        if name.startswith(("ostro_arch_", "ostro_quant_")):
            del sys.modules[name]


def tested(project: Path, site: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a project, as its author does."""
    places = os.pathsep.join([str(site), *filter(None, sys.path)])
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *options)
    return subprocess.run(
        [sys.executable, *words],
        cwd=project,
        env={**os.environ, "PYTHONPATH": places, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
