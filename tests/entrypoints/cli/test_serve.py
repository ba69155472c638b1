"""Options of `ostro serve`: keys, from the command line and from files."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ostro.entrypoints.cli import main, serve
from ostro.entrypoints.cli.server_options import add_server_options
from ostro.entrypoints.http.options import Options


@pytest.mark.parametrize(
    ("words", "models"),
    [
        ([], [(None, "starter")]),
        (["a"], [(None, "a")]),
        (["a", "--port", "0", "x=b", "--also", "c"], [(None, "a"), ("x", "b"), (None, "c")]),
        (["x=a", "y=b"], [("x", "a"), ("y", "b")]),
        (["-m", "a", "b"], [(None, "a"), (None, "b")]),
        (["-m", "x=a"], [("x", "a")]),
        (["a", "--name", "x"], [("x", "a")]),
        (["a=b.gguf"], [(None, "a=b.gguf")]),
    ],
)
def test_positionals_are_models(
    started: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    models: list[object],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a=b.gguf").touch()
    assert main(["serve", *words]) == 0
    (ran,) = started
    assert [(each.settings.name, each.settings.reference) for each in ran["models"]] == models


def test_options_of_the_server_are_fields_with_the_same_defaults() -> None:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    stated = serve.server_options(parser.parse_args([]))
    names = {field.name for field in fields(Options)}
    assert names - stated.keys() == {"engine", "ready"}
    for name, value in stated.items():
        default = getattr(Options(), name)
        assert (tuple(value) if isinstance(value, list) else value) == default, name


def test_every_option_of_the_server_is_used() -> None:
    names = {field.name for field in fields(Options)}
    others = {"adapter_root", "api_key", "api_key_file", "admin_key_file"}
    others |= {"allow_host", "cors_origin"}
    parser = argparse.ArgumentParser(add_help=False)
    add_server_options(parser)
    assert {action.dest for action in parser._actions} - names == others


def test_two_names_of_a_model(
    started: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "x=a", "--name", "y"]) == 2
    assert "expected one name" in capsys.readouterr().err and not started


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


@pytest.mark.parametrize("words", ["--hang-timeout 0", "--max-queue 0", "--max-wait -1"])
def test_positive_numbers(
    started: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], words: str
) -> None:
    assert main(["serve", *words.split()]) == 2
    assert words in capsys.readouterr().err and not started


def test_keys_and_limits(started: list[dict[str, Any]]) -> None:
    main(["serve", "--keys", "keys.toml", "--max-queue", "9", "--max-wait", "1.5"])
    main(["serve", "--share-prefixes", "--open-metrics", "--max-queue-tokens", "100"])
    names = "keys max_queue max_wait share_prefixes open_metrics max_queue_tokens".split()
    assert [[ran[name] for name in names] for ran in started] == [
        [Path("keys.toml"), 9, 1.5, False, False, None],
        [None, None, None, True, True, 100],
    ]
