"""Paths with symbolic links resolve alike in every Python version; only regular files are read."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import closing
from pathlib import Path

import pytest
from tiny.pipes import pipe

from ostro.core.paths import open_regular, read_regular, reason_of, resolve_path


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


def test_a_file_is_read_up_to_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\r\n" * 500_000)
    (tmp_path / "link").symlink_to(file)
    assert read_regular(tmp_path / "link", 1_000_000) == file.read_bytes()
    with pytest.raises(OSError, match="larger than 0 MB") as raised:
        read_regular(file, 999_999)
    assert raised.value.errno == errno.EFBIG and raised.value.filename == str(file)
    small = os.stat(__file__)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", lambda descriptor: small)  # the file grows meanwhile
        with pytest.raises(OSError, match="larger than 0 MB"):
            read_regular(file, 999_999)


def test_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "missing")
    with closing(socket.socket(socket.AF_UNIX)) as opened:
        opened.bind(os.path.relpath(tmp_path / "socket"))
        with pipe(tmp_path / "pipe"):
            (tmp_path / "link").symlink_to("pipe")
            for path in ("pipe", "link", "socket", ".", "/dev/zero", "/dev/null"):
                with pytest.raises(OSError, match="not a regular file") as raised:
                    open_regular(tmp_path / path)
                assert reason_of(raised.value) == "not a regular file"


def test_a_file_that_becomes_a_pipe_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regular = os.stat(__file__)
    os.close(unused := os.dup(0))
    with pipe(tmp_path / "pipe"), monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda path: regular)
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(tmp_path / "pipe")
    os.close(after := os.dup(0))
    assert after == unused, "the descriptor is closed"
