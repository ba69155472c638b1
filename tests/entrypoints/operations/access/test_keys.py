"""Keys files: valid and invalid ones, reloading, expiry, and the time of a search."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ostro.core.errors import UsageError
from ostro.entrypoints.operations.access.keys import (
    KeyRing,
    new_key,
    parse_keys,
    read_keys,
    sha256_of,
)

EVERYTHING = f"""
[[keys]]
name = "alice"
sha256 = "{sha256_of("one").upper()}"
scopes = ["infer", "admin", "metrics"]
models = ["chat"]
adapters = ["sql", "{"ab" * 32}"]
requests_per_minute = 60
tokens_per_minute = 100_000
concurrent_requests = 4
priority = -3
expires = 2030-01-01T00:00:00Z

[[keys]]
name = "bob"
sha256 = "{sha256_of("two")}"
"""


def entry(name: str = "alice", key: str = "one", rest: str = "") -> str:
    return f'[[keys]]\nname = "{name}"\nsha256 = "{sha256_of(key)}"\n{rest}\n'


def write(file: Path, text: str, mode: int = 0o600) -> Path:
    file.write_text(text)
    file.chmod(mode)
    return file


def test_every_field() -> None:
    alice, bob = parse_keys(EVERYTHING)
    assert alice.sha256 == sha256_of("one") and alice.priority == -3
    assert alice.scopes == {"infer", "admin", "metrics"}
    assert (alice.models, alice.adapters) == ({"chat"}, {"sql", "ab" * 32})
    limits = alice.requests_per_minute, alice.tokens_per_minute, alice.concurrent_requests
    assert limits == (60, 100_000, 4)
    assert alice.expires is not None and alice.expires.year == 2030
    assert bob.scopes == {"infer"} and bob.models is bob.adapters is bob.expires is None
    assert (bob.requests_per_minute, bob.priority) == (None, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "contains no key"),
        ("keys = 3", "contains no key"),
        ("keys = [1]", "key 1"),
        ("[[keys]]\nname = ", r"invalid TOML"),
        ("[[keys]]\nname = 'a' 'b'", r"invalid TOML: .*line 2"),
        ("a = " + "[" * 100_000, "invalid TOML"),
        ("[[key]]\nname = 'a'", "unknown table 'key'"),
        (entry() + entry("bob"), "2 keys have the sha256"),
        (entry() + entry(key="two"), "2 keys have the name 'alice'"),
        (entry(name=""), "key 1: name ''"),
        (entry(name="a b"), "key 1: name 'a b'"),
        (entry(name="x" * 65), "key 1: name"),
        ("[[keys]]\nsha256 = 'ab'", "key 1: name None"),
        ("[[keys]]\nname = 'a'", "key 'a': sha256 is not 64"),
        ("[[keys]]\nname = 'a'\nsha256 = 'ab'", "key 'a': sha256 is not 64"),
        (f"[[keys]]\nname = 'a'\nsha256 = '{'g' * 64}'", "key 'a': sha256 is not 64"),
        (entry(rest="prioritty = 1"), "unknown field 'prioritty'; nearest: priority"),
        (entry(rest="scopes = ['root']"), r"key 'alice': scopes.*Invalid enum value 'root'"),
        (entry(rest="models = 'chat'"), r"key 'alice': models: Expected `array"),
        (entry(rest="requests_per_minute = 0"), "requests_per_minute"),
        (entry(rest="tokens_per_minute = 1.5"), "tokens_per_minute"),
        (entry(rest="concurrent_requests = true"), "concurrent_requests"),
        (entry(rest="priority = 4000000000"), "priority"),
        (entry(rest="expires = 2030-01-01T00:00:00"), "timezone"),
        (entry(rest="expires = 'tomorrow'"), "expires"),
    ],
)
def test_invalid_files(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path / "keys.toml", text)
    with pytest.raises(UsageError, match=message) as found:
        read_keys(file)
    assert str(found.value).startswith(f"--keys {file}: ")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_keys(tmp_path / "none")
    with pytest.raises(UsageError, match="not a regular file"):
        read_keys(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a regular file"):
        read_keys(tmp_path / "pipe")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="utf-8"):
        read_keys(tmp_path / "binary")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(17 << 20)
    with pytest.raises(UsageError, match="larger than 16 MB"):
        read_keys(tmp_path / "large")


@pytest.mark.parametrize(("mode", "warns"), [(0o600, 0), (0o640, 0), (0o644, 1), (0o660, 1)])
def test_a_file_that_others_can_read_or_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warns: int
) -> None:
    read_keys(write(tmp_path / "keys.toml", entry(), mode))
    assert len(caplog.records) == warns
    assert not warns or "chmod 600" in caplog.text


def test_reloading_keeps_the_keys_of_the_command_line(tmp_path: Path) -> None:
    file = write(tmp_path / "keys.toml", entry())
    ring = KeyRing.of(["plain"], "boss", file=file)
    assert names(ring) == {"api-key 1", "admin-key", "alice"}
    write(file, entry("bob", "two"))
    ring.reload()
    assert ring.find(b"one") is None
    assert (found := ring.find(b"two")) and found.name == "bob"
    write(file, entry() + "scopes = [")
    for broken in (lambda: None, file.unlink):
        broken()
        with pytest.raises(UsageError):
            ring.reload()
        assert names(ring) == {"api-key 1", "admin-key", "bob"}
        assert ring.find(b"two") and ring.find(b"plain") and not ring.find(b"one")


def names(ring: KeyRing) -> set[str]:
    return {key.name for key in ring.keys.values()}


def test_locked() -> None:
    assert not KeyRing.of().locked and not KeyRing.of(admin_key="boss").locked
    assert KeyRing.of(["a"]).locked and KeyRing.of(["a"], "boss").locked
    assert "admin" in KeyRing.of().anonymous().scopes
    assert "admin" not in KeyRing.of(admin_key="boss").anonymous().scopes


def test_a_clock_that_is_set_back_does_not_revive_a_key(tmp_path: Path) -> None:
    file = write(tmp_path / "keys.toml", entry(rest="expires = 1970-01-01T00:01:00Z"))
    now = [59.9]
    ring = KeyRing(file=file, clock=lambda: now[0])
    key = ring.find(b"one")
    assert key is not None and not ring.expired(key)
    now[0] = 60.0
    assert ring.expired(key)
    now[0] = 10.0
    assert ring.expired(key)
    ring.reload()  # a clock that was wrong is mended by reading the file again
    assert not ring.expired(key)


def test_salts_differ_and_are_secret(tmp_path: Path) -> None:
    file = write(tmp_path / "keys.toml", entry() + entry("bob", "two"))
    ring, other = KeyRing(file=file), KeyRing(file=file)
    salts = [each.caller(key).salted("x") for each in (ring, other) for key in each.keys.values()]
    assert len({*salts}) == 4
    shared = KeyRing(file=file, share_prefixes=True)
    assert [shared.caller(key).salted("x") for key in shared.keys.values()] == ["x", "x"]


def test_ten_thousand_keys(tmp_path: Path) -> None:
    text = "".join(entry(f"user-{i}", f"key {i}") for i in range(10_000))
    ring = KeyRing(file=write(tmp_path / "keys.toml", text))
    for i in (0, 5000, 9999):
        assert (found := ring.find(f"key {i}".encode())) and found.name == f"user-{i}"
    assert ring.find(b"key 10000") is None


def test_new_keys_are_random() -> None:
    first, second = new_key(), new_key()
    assert first != second and first.startswith("ostro-") and len(first) >= 40
