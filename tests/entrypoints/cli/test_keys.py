"""`ostro keys`: new keys and checked files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ostro.entrypoints.operations.access.keys import parse_keys, read_keys, sha256_of


def secret_in(err: str) -> str:
    return re.findall(r"ostro-[\w-]{43}", err)[0]


def test_a_new_key_is_printed_once(ostro) -> None:
    ran = ostro("keys", "new", "alice")
    (key,) = parse_keys(ran.out)
    assert ran.code == 0 and key.name == "alice" and key.scopes == {"infer"}
    secret = secret_in(ran.err)
    assert sha256_of(secret) == key.sha256 and secret not in ran.out


@pytest.mark.parametrize("ending", ["", "\n", "\n\n"])
def test_new_keys_are_appended(ostro, tmp_path: Path, ending: str) -> None:
    file = tmp_path / "keys.toml"
    assert ostro("keys", "new", "alice", "--keys", str(file)).code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("# mine\n" + file.read_text().rstrip() + "\npriority = 3" + ending)
    ran = ostro("keys", "new", "bob", "--keys", str(file))
    assert ran.code == 0 and not ran.out
    alice, bob = read_keys(file)
    assert (alice.name, alice.priority, bob.name) == ("alice", 3, "bob")
    assert bob.sha256 == sha256_of(secret_in(ran.err)) and file.read_text().startswith("# mine\n")


def test_nothing_is_written_in_case_of_an_error(ostro, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    ostro("keys", "new", "alice", "--keys", str(file))
    before = file.read_text()
    ran = ostro("keys", "new", "alice", "--keys", str(file))
    assert (ran.code, ran.out) == (2, "") and "2 keys have the name 'alice'" in ran.err
    for name in ("a b", 'x"', "x\\", "", "x\ny"):
        ran = ostro("keys", "new", name, "--keys", str(file))
        assert ran.code == 2 and "name" in ran.err and "ostro-" not in ran.err
    assert file.read_text() == before
    ran = ostro("keys", "new", "bob", "--keys", str(tmp_path))
    assert ran.code == 2 and str(tmp_path) in ran.err


def test_a_file_is_checked(ostro, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(
        f"[[keys]]\nname = 'alice'\nsha256 = '{'a' * 64}'\nmodels = ['b', 'a']\nadapters = []\n"
        f"requests_per_minute = 60\nexpires = 2001-01-01T00:00:00Z\n"
        f"[[keys]]\nname = 'bob'\nsha256 = '{'b' * 64}'\nscopes = ['metrics', 'admin']\n"
    )
    file.chmod(0o600)
    ran = ostro("keys", "check", str(file))
    assert ran.code == 0 and ran.out.splitlines() == [
        "alice infer models=a,b adapters=none requests_per_minute=60 "
        "expires=2001-01-01 00:00:00+00:00 EXPIRED",
        "bob admin,metrics",
    ]
    file.write_text("[[keys]]")
    assert ostro("keys", "check", str(file)).code == 2
