"""Paths with symbolic links resolve alike in every Python version."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ostro.core.paths import resolve_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "there").symlink_to("back")
    (tmp_path / "back").symlink_to("there")
    return tmp_path.resolve()


@pytest.mark.parametrize("name", ["real", "link", "link/../real/.", "missing/../link"])
def test_links_are_followed(folder: Path, name: str) -> None:
    assert resolve_path(folder / name) == folder / "real"


def test_missing_parts_stay(folder: Path) -> None:
    assert resolve_path(folder / "link" / "no" / "file") == folder / "real" / "no" / "file"


@pytest.mark.parametrize("name", ["loop", "there", "loop/inner", "link/../loop", "missing/../loop"])
def test_a_symlink_loop_raises(folder: Path, name: str) -> None:
    with pytest.raises(OSError) as raised:
        resolve_path(folder / name)
    assert raised.value.errno == errno.ELOOP


def test_a_nul_character_raises(folder: Path) -> None:
    with pytest.raises(ValueError):
        resolve_path(folder / "a\0b")
