"""Options of `ostro serve`: keys, from the command line and from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ostro.entrypoints.cli import main
from ostro.entrypoints.http import server


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of each server that was started."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(server, "serve", lambda settings, **options: found.append(options) or 0)
    return found


def test_keys_from_files(started: list[dict[str, Any]], tmp_path: Path) -> None:
    keys, admin = tmp_path / "keys", tmp_path / "admin"
    keys.write_text("alice\n\n  bob \n")
    admin.write_text("boss\n")
    main(["serve", "--api-key", "carol", "--api-key-file", str(keys)])
    main(["serve", "--admin-key-file", str(admin)])
    main(["serve", "--admin-key", "boss"])
    main(["serve"])
    assert [each["api_keys"] for each in started] == [["carol", "alice", "bob"], [], [], []]
    assert [each["admin_key"] for each in started] == [None, "boss", "boss", None]


@pytest.mark.parametrize("option", ["--api-key-file", "--admin-key-file"])
@pytest.mark.parametrize("content", [None, b"", b" \n\n", b"\xff\xfe"])
def test_files_without_a_key(
    started: list[dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    option: str,
    content: bytes | None,
) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    assert main(["serve", option, str(file)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"ostro: {option} {file}") and not started


def test_one_admin_key(
    started: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    file.write_text("one\ntwo\n")
    assert main(["serve", "--admin-key-file", str(file)]) == 2
    assert "one key" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["serve", "--admin-key", "one", "--admin-key-file", str(file)])
    assert "not allowed with" in capsys.readouterr().err
    assert main(["serve", "--api-key", " "]) == 2
    assert "--api-key is empty" in capsys.readouterr().err
    assert not started


def test_positive_times(started: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--hang-timeout", "0"]) == 2
    assert "--hang-timeout 0" in capsys.readouterr().err and not started
