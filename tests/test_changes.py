"""Which tests a changed file asks for."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from changes import PLUGINS, ROOT, TESTS, changed_files, changes, related_tests, with_dependents

from ostro.plugins.conformance.architecture import all_plugins

FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for parent in (*PLUGINS, "core", "entrypoints")
    for path in (ROOT / parent).rglob("*.py")
)


def item(path: str, architecture: str = "", **parameters: str) -> Any:
    """A test of an architecture's kit, or a cell of a grid."""
    cls = SimpleNamespace(name=architecture) if architecture else None
    callspec = SimpleNamespace(params=parameters)
    return SimpleNamespace(nodeid=f"{path}::test_x", cls=cls, callspec=callspec)


def exists(beginning: str) -> bool:
    folder, _, name = beginning.rpartition("/")
    return any((ROOT / folder).glob(f"{name}*"))


def test_every_file_has_tests() -> None:
    assert len(FILES) > 500
    without = [f for f in FILES if not related_tests(f) and not f.endswith("__init__.py")]
    assert not without
    assert all(exists(beginning) for file in FILES for beginning in related_tests(file))


def test_every_row_of_the_table_is_a_folder() -> None:
    assert all((ROOT / folder).is_dir() for folder in TESTS)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("core/nn/rope.py", "tests/core/nn/test_rope"),
        ("core/nn/storage.py", "tests/core/nn/"),
        ("quant/gguf/codec.py", "tests/quant/gguf/"),
        ("plugins/parsers/apriel/parser.py", "tests/plugins/parsers/"),
        ("architectures/llama/model.py", "tests/architectures/test_llama"),
        ("architectures/qwen3_vl/model.py", "tests/architectures/test_qwen_vl"),
        ("README.md", None),
    ],
)
def test_tests_have_the_path_of_the_file(file: str, expected: str | None) -> None:
    assert expected in (related_tests(file) or [None])


def test_a_trunk_changes_those_that_use_it() -> None:
    assert with_dependents({"cwm"}) == {"cwm"}
    assert {"cwm", "qwen2", "qwen3", "mixtral"} < with_dependents({"llama"})
    assert "whisper" not in with_dependents({"llama"})


def test_an_architecture_asks_for_its_own_tests() -> None:
    selected = changes(["architectures/cwm/__init__.py"], all_plugins())
    formats = "tests/architectures/test_formats.py"
    assert selected.ask_for(item("tests/architectures/test_cwm.py", "cwm"))
    assert selected.ask_for(item(formats, grid="cwm", format="q4k"))
    assert not selected.ask_for(item(formats, grid="llama", format="q4k"))
    assert not selected.ask_for(item("tests/architectures/test_llama.py", "llama"))


def test_a_format_asks_for_its_tests_and_its_cells() -> None:
    selected = changes(["quant/hqq/codec.py"], all_plugins())
    formats = "tests/architectures/test_formats.py"
    assert selected.ask_for(item("tests/quant/hqq/test_hqq.py"))
    assert selected.ask_for(item(formats, grid="llama", format="hqq4"))
    assert not selected.ask_for(item(formats, grid="llama", format="q4k"))
    assert not selected.ask_for(item(formats, grid="cwm", format="hqq4"))


def test_other_files_ask_for_nothing() -> None:
    selected = changes(["core/nn/rope.py", "README.md"], all_plugins())
    assert not selected.ask_for(item("tests/architectures/test_llama.py", "llama"))
    assert not selected.ask_for(item("tests/core/nn/test_rope.py"))


def test_changed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of later commits, of the working tree, and new ones that git does not ignore."""

    def git(*arguments: str) -> None:
        author = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *author, *arguments], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr("changes.ROOT", tmp_path)
    for name in ("same", "committed", "edited"):
        (tmp_path / name).write_text("1")
    (tmp_path / ".gitignore").write_text("ignored")
    git("init", "-b", "base")
    git("add", ".")
    git("commit", "-m", "first")
    git("checkout", "-b", "work")
    (tmp_path / "committed").write_text("2")
    git("commit", "-am", "second")
    for name in ("edited", "new", "ignored"):
        (tmp_path / name).write_text("2")
    assert sorted(changed_files("base")) == ["committed", "edited", "new"]
    with pytest.raises(pytest.UsageError, match=r"--changed no-such-ref: .*no-such-ref"):
        changed_files("no-such-ref")
