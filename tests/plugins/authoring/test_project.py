"""`ostro plugin new`: what it writes is a plugin that works, in good style."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ostro.core.plugins.manager import PluginManager
from ostro.core.records import API

if TYPE_CHECKING:
    from tests.plugins.authoring.conftest import Install, Plugin

ROOT = Path(__file__).resolve().parents[3]
KINDS = {"architecture": "ostro-arch-", "quantizer": "ostro-quant-"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_project_is_a_plugin(
    kind: str, plugin: Plugin, installed: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = plugin("new", "my-thing", "--kind", kind)
    assert ran.code == 0, ran.err
    project = tmp_path / f"{KINDS[kind]}my-thing"
    written = {file.relative_to(tmp_path).as_posix() for file in project.rglob("*.*")}
    assert {line.split()[-1] for line in ran.out.splitlines()[:-1]} == written
    assert not [file for file in project.rglob("*") if file.is_file() and "$" in file.read_text()]
    said = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert said["optional-dependencies"]["ostro"] == [f"ostro>={API[0]}.{API[1]},<0.{API[1] + 1}"]
    checked = plugin("check", project)
    assert (checked.code, checked.out) == (0, f"{project.name}: 0 errors, 0 warnings\n")
    installed(project)
    manager = PluginManager()
    manager.load()
    [found] = [each for each in manager.describe() if each.name == "my-thing"]
    assert found.status == "active", found.reason
    assert found.offers == {f"{kind}s": ("my-thing",)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pytest.param("architecture", marks=pytest.mark.slow), "quantizer"]
)
def test_its_own_tests_pass(kind: str, plugin: Plugin, install: Install, tmp_path: Path) -> None:
    from tests.plugins.authoring.conftest import tested

    project = tmp_path / "project"
    assert plugin("new", "mine", "--kind", kind, "-o", project).code == 0
    ran = tested(project, install(project))
    assert ran.returncode == 0 and " passed" in ran.stdout, ran.stdout[-3000:]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_in_good_style(kind: str, plugin: Plugin, tmp_path: Path) -> None:
    if importlib.util.find_spec("ruff") is None:
        pytest.skip("ruff is not installed")
    assert plugin("new", "mine", "--kind", kind, "-o", tmp_path / "p").code == 0
    for words in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        ran = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "."],
            cwd=tmp_path / "p",
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_its_types_are_right(
    kind: str, plugin: Plugin, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    assert plugin("new", "mine", "--kind", kind, "-o", tmp_path / "p").code == 0
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--follow-imports=silent",
            f"--cache-dir={tmp_path_factory.getbasetemp()}/mypy",
        ],
        cwd=tmp_path / "p",
        env={"MYPYPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("name", ["Big", "9lives", "a--b", "a b", "", "-a", "a.b", "a/../b"])
def test_a_name_that_can_be_none_is_refused(name: str, plugin: Plugin, tmp_path: Path) -> None:
    ran = plugin("new", "-o", tmp_path / "p", "--", name)
    assert ran.code == 2 and not (tmp_path / "p").exists()


def test_nothing_is_written_over(plugin: Plugin, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    ran = plugin("new", "mine", "-o", tmp_path)
    assert ran.code == 2 and "is not empty" in ran.err
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_a_format_has_no_reference_to_come_from(plugin: Plugin, tmp_path: Path) -> None:
    words = ("new", "a", "--kind", "quantizer", "--from", "transformers:X", "-o", tmp_path / "p")
    assert plugin(*words).code == 2


def test_the_page_shows_what_is_printed(
    plugin: Plugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "plugins.md").read_text()
    shown = re.search(r"^\$ ostro plugin new arcee\n(.+?)^```", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    assert shown is not None and plugin("new", "arcee").out == shown[1]


LIGHT = """
import sys
from ostro.entrypoints.cli import main
assert main(["plugin", "new", "a", "-o", sys.argv[1]]) == 0
olmo = "transformers:OlmoForCausalLM"
assert main(["plugin", "new", "b", "--from", olmo, "-o", sys.argv[2]]) == 0
assert main(["plugin", "check", sys.argv[1]]) == main(["plugin", "check", sys.argv[2]]) == 0
assert main(["plugin", "blocks"]) == 0
heavy = {"torch", "transformers", "triton", "numpy"} & set(sys.modules)
assert not heavy, heavy
mine = [name for name in sys.modules if name.startswith("ostro_arch_")]
assert not mine, mine
"""


def test_authors_tools_import_neither_torch_nor_the_plugin(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LIGHT, tmp_path / "a", tmp_path / "b"],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
