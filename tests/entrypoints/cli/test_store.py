"""`ostro store ls|purge`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ostro.core.errors import UsageError
from ostro.core.store import Document
from ostro.entrypoints.cli.store import parse_duration
from ostro.plugins.stores.sqlite.store import SqliteStore

DAY = 86400.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with documents of two owners, one of them ten days old, one expired."""
    folder, now = tmp_path / "state", time.time()
    store = SqliteStore(folder)
    for owner, kind, id, age, lifetime in (
        ("ann", "file", "a", 10, 30),
        ("ann", "file", "b", 0, 30),
        ("ann", "batch_line/x", "1", 0, 30),
        ("bob", "file", "c", 0, 30),
        ("", "response", "d", 2, 1),
    ):
        created = now - age * DAY
        store.put(
            Document(
                owner=owner,
                kind=kind,
                id=id,
                body=b"secret",
                created=created,
                expires=created + lifetime * DAY,
            )
        )
    store.close()
    return folder


def rows(ostro, folder: Path, *words: str) -> dict[tuple[str, str], int]:
    found = json.loads(ostro("store", "ls", str(folder), "--json", *words).out)
    return {(each["owner"], each["kind"]): each["documents"] for each in found}


ALL = {("ann", "batch_line/x"): 1, ("ann", "file"): 2, ("bob", "file"): 1}


def test_ls_counts_documents_by_owner_and_kind(ostro, folder: Path) -> None:
    assert rows(ostro, folder) == ALL
    assert rows(ostro, folder, "--owner", "bob") == {("bob", "file"): 1}
    assert rows(ostro, folder, "--kind", "batch_line") == {("ann", "batch_line/x"): 1}
    lines = ostro("store", "ls", str(folder)).out.splitlines()
    assert [line.split("\t")[:4] for line in lines][1] == ["ann", "file", "2", "12"]
    assert ostro("store", "ls", str(folder), "--owner", "eve").err == "nothing is stored\n"


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ([], ALL),
        (["--all"], {}),
        (["--owner", "ann"], {("bob", "file"): 1}),
        (["--kind", "file"], {("ann", "batch_line/x"): 1}),
        (["--older-than", "7d"], {**ALL, ("ann", "file"): 1}),
        (["--older-than", "7d", "--owner", "bob"], ALL),
    ],
)
def test_purge_deletes_what_is_selected_and_expired(
    ostro, folder: Path, words: list[str], left: dict[tuple[str, str], int]
) -> None:
    ran = ostro("store", "purge", str(folder), "--yes", *words)
    count = sum(ALL.values()) - sum(left.values()) + 1
    assert (ran.code, ran.err) == (0, f"deleted {count} documents\n")
    assert rows(ostro, folder) == left
    texts = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert any(b"secret" in text for text in texts) is bool(left)


def test_purge_asks_before_it_deletes(ostro, folder: Path) -> None:
    ran = ostro("store", "purge", str(folder), "--all")
    assert ran.code == 2 and "delete 4 documents?" in ran.err and "--yes" in ran.err
    assert rows(ostro, folder) == ALL


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["ls", "memory"], "exists in its server only"),
        (["ls", "none"], "exists in its server only"),
        (["ls", "redis://host"], "no plugin has such a store; expected memory, a folder"),
        (["ls", "{missing}"], "holds no store"),
        (["purge", "{folder}", "--older-than", "soon"], "not a duration"),
        (["purge", "{folder}", "--all", "--kind", "file"], "--all selects everything"),
    ],
)
def test_wrong_usage_is_explained(
    ostro, folder: Path, tmp_path: Path, words: list[str], text: str
) -> None:
    missing = tmp_path / "missing"
    ran = ostro("store", *(word.format(folder=folder, missing=missing) for word in words))
    assert ran.code == 2 and text in ran.err
    assert not missing.exists()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30d", 30 * DAY), ("12h", 43200), ("5m", 300), ("90s", 90), ("1.5h", 5400)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_forever_is_no_limit() -> None:
    assert parse_duration("forever") is None


@pytest.mark.parametrize("text", ["", "30", "0d", "-1d", "1w", "1e9d", "nan", "30 d", "9" * 99])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a duration"):
        parse_duration(text)
