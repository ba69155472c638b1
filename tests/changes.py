"""Which tests a change adds to those of `make test`.

`--changed REF` marks as `changed` the tests of each architecture, weight format, adapter kind and
other plugin with a file that differs from the git commit REF, and of the architectures that have a
changed one as their trunk. `make test` runs these although they are slow.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from tiny.families import REPRESENTATIVES

from ostro.core.load.quantize import makers
from ostro.core.plugins.manager import PluginManager

ROOT = Path(__file__).resolve().parents[1]

PLUGINS = ("adapters", "architectures", "plugins", "quant")
"""The folders of plugins."""

TESTS: Mapping[str, Sequence[str]] = {
    "architectures/qwen2_5_vl": ["architectures/test_qwen2_vl.py", "architectures/test_qwen_vl"],
    "architectures/qwen3_vl": ["architectures/test_qwen3_vl", "architectures/test_qwen_vl"],
    "architectures/transformers": ["architectures/test_transformers", "architectures/test_sweep"],
}
"""The beginnings of the paths of tests, below `tests`, by folder. Without a row, the path of a test
is that of what it tests."""


def changed_files(ref: str) -> list[str]:
    """The files that differ from the common ancestor with `ref`, committed or not.

    Raises UsageError if git does not know `ref`.
    """
    commands = [
        ["git", "diff", "--name-only", "--merge-base", ref],
        ["git", "ls-files", "--others", "--exclude-standard"],
    ]
    files = list[str]()
    for command in commands:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if run.returncode:
            raise pytest.UsageError(f"--changed {ref}: {run.stderr.strip()}")
        files += run.stdout.splitlines()
    return files


def related_tests(file: str) -> list[str]:
    """The beginnings of the paths of a file's tests: a row of `TESTS`, or those with the same path.

    `core/nn/rope.py` has `tests/core/nn/test_rope*.py`, or if there are none, `tests/core/nn/`.
    """
    path = Path(file).with_suffix("")
    for part in (path, *path.parents):
        if row := TESTS.get(part.as_posix()):
            return [f"tests/{beginning}" for beginning in row]
        folder = Path("tests") / part.parent
        if part.name and any((ROOT / folder).glob(f"test_{part.name}*.py")):
            return [(folder / f"test_{part.name}").as_posix()]
        if part.name and (ROOT / folder / part.name).is_dir():
            return [(folder / part.name).as_posix() + "/"]
    return []


@cache
def uses(architecture: str) -> frozenset[str]:
    """The other folders of architectures that the modules of this one name."""
    sources = (ROOT / "architectures" / architecture).rglob("*.py")
    pattern = re.compile(r"\bostro\.architectures\.(\w+)")
    return frozenset(n for file in sources for n in pattern.findall(file.read_text("utf-8")))


def with_dependents(changed: Collection[str]) -> set[str]:
    """The folders of architectures in `changed`, and those that use one of them."""
    architectures = {path.parent.name for path in ROOT.glob("architectures/*/__init__.py")}
    result = architectures & set(changed)
    while more := {name for name in architectures - result if uses(name) & result}:
        result |= more
    return result


@dataclass(frozen=True)
class Changes:
    """Names of changed architectures, names of formats whose quantizer has changed, and the
    beginnings of the paths of tests.
    """

    architectures: frozenset[str]
    formats: frozenset[str]
    beginnings: tuple[str, ...]

    def ask_for(self, item: pytest.Item) -> bool:
        """Whether a changed plugin has this test."""
        callspec = getattr(item, "callspec", None)
        parameters = callspec.params if callspec else {}
        name = getattr(getattr(item, "cls", None), "name", parameters.get("grid"))
        return (
            item.nodeid.startswith(self.beginnings)
            or name in self.architectures
            or (name in REPRESENTATIVES and parameters.get("format") in self.formats)
        )


def changes(files: Collection[str], plugins: PluginManager) -> Changes:
    """What the changed files ask for; files outside of `PLUGINS` ask for nothing."""
    files = [file for file in files if file.split("/")[0] in PLUGINS]
    changed = {tuple(file.split("/")[:2]) for file in files}
    folders = with_dependents({name for parent, name in changed if parent == "architectures"})
    files += [f"architectures/{name}/__init__.py" for name in sorted(folders)]
    architectures = plugins.collect("architectures")
    return Changes(
        frozenset(n for n in architectures if folder_of(plugins, "architectures", n) in folders),
        frozenset(n for n, m in makers(plugins).items() if ("quant", m.quantizer.name) in changed),
        tuple({beginning for file in files for beginning in related_tests(file)}),
    )


def folder_of(plugins: PluginManager, kind: str, name: str) -> str:
    """The name of the folder of the plugin that declares a record."""
    plugin = plugins.origin(kind, name).split(" ")[1]
    return plugin.rpartition(".")[2]
