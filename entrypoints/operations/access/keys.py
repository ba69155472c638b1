"""API keys: the keys file of a server, and the permissions and limits of each key.

The file is TOML. It holds the SHA-256 of each key, never the key itself.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import stat
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from secrets import token_hex, token_urlsafe
from typing import Annotated, Any, Literal

import msgspec

from ostro.core.errors import UsageError, nearest
from ostro.core.paths import read_regular, reason_of
from ostro.core.routes import Scope
from ostro.entrypoints.operations.access.caller import Caller

log = logging.getLogger(__name__)
MAX_BYTES = 16_000_000
"""Limit on the bytes of a keys file; 10,000 keys need some 3 MB."""
MAX_PRIORITY = 2**31 - 1
CONFIG_TABLES = ("server", "models")
"""Other tables of a config file, which may contain the keys of its server."""
PREFIX = "ostro-"
"""Start of generated keys, by which scanners find keys in published files."""
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
SHA256 = re.compile(r"[0-9a-fA-F]{64}")
Limit = Annotated[int, msgspec.Meta(ge=1)] | None
"""A limit of a key, None for unlimited."""


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An API key: an entry `[[keys]]` of a keys file.

    sha256    the SHA-256 of the key, as 64 hexadecimal digits
    scopes    the scopes of the routes that it may use
    models    the models that it may use, None for all
    adapters  the names and generations of adapters that it may use, None for all
    priority  the best priority that its requests get; a lower number is first
    expires   the time from which on it is rejected

    stored_bytes and stored_documents limit what it has stored.
    """

    name: str
    sha256: str
    scopes: frozenset[Literal["infer", "admin", "metrics"]] = frozenset({"infer"})
    models: frozenset[str] | None = None
    adapters: frozenset[str] | None = None
    requests_per_minute: Limit = None
    tokens_per_minute: Limit = None
    concurrent_requests: Limit = None
    stored_bytes: Limit = None
    stored_documents: Limit = None
    priority: Annotated[int, msgspec.Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    expires: Annotated[datetime, msgspec.Meta(tz=True)] | None = None

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the key."""
        return bytes.fromhex(self.sha256)

    def expired(self, now: float) -> bool:
        """Whether the key has expired at a time in seconds since 1970."""
        return self.expires is not None and now >= self.expires.timestamp()


class RingState(msgspec.Struct, kw_only=True):
    """The keys of a server, for another process of it; see `KeyRing`."""

    fixed: list[Key]
    keys: list[Key]
    file: str | None
    share_prefixes: bool
    secret: str


class KeyRing:
    """The keys of a server: those of its command line and those of its keys file.

    Its clock does not go back: an expired key stays expired until the file is read again.
    """

    def __init__(
        self,
        fixed: Sequence[Key] = (),
        *,
        file: Path | None = None,
        share_prefixes: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """fixed: keys of the command line. share_prefixes: give all callers one prefix cache.

        Raises UsageError for a file that is malformed.
        """
        self.fixed, self.file, self.share_prefixes = tuple(fixed), file, share_prefixes
        self.clock, self.latest = clock, 0.0
        self.secret = token_hex(16)  # a client cannot state the salt of another caller
        self.keys: dict[bytes, Key] = {}  # by digest; replaced as a whole, maybe in a thread
        self.reload()

    @classmethod
    def of(
        cls, api_keys: Iterable[str] = (), admin_key: str | None = None, **options: Any
    ) -> KeyRing:
        """The ring of keys in plain text. Raises UsageError for an empty admin key."""
        fixed = [
            plain_key(f"api-key {i}", key, "infer", "metrics") for i, key in enumerate(api_keys, 1)
        ]
        if admin_key is not None:
            if not admin_key.strip():
                raise UsageError("--admin-key is empty")
            fixed.append(plain_key("admin-key", admin_key, "infer", "metrics", "admin"))
        return cls(fixed, **options)

    @classmethod
    def of_state(cls, state: RingState) -> KeyRing:
        """The ring of another process. It does not read the file."""
        ring = cls(state.fixed, share_prefixes=state.share_prefixes)
        ring.use(state)
        return ring

    @property
    def state(self) -> RingState:
        """The keys and salts, for another process of this server."""
        return RingState(
            fixed=[*self.fixed],
            keys=[*self.keys.values()],
            file=None if self.file is None else str(self.file),
            share_prefixes=self.share_prefixes,
            secret=self.secret,
        )

    def use(self, state: RingState) -> None:
        """Replace the keys by those of another process."""
        self.file = None if state.file is None else Path(state.file)
        self.secret, self.latest = state.secret, 0.0
        self.keys = {key.digest: key for key in state.keys}

    @property
    def locked(self) -> bool:
        """Whether requests need a key. The key --admin-key alone protects the admin routes only."""
        return any("admin" not in key.scopes for key in self.fixed) or self.file is not None

    @property
    def has_admin(self) -> bool:
        """Whether a key has the admin scope."""
        return any("admin" in key.scopes for key in self.keys.values())

    def reload(self) -> None:
        """Read the file again. Raises UsageError if it is malformed; the keys then stay."""
        found = () if self.file is None else read_keys(self.file)
        self.keys = {key.digest: key for key in (*found, *self.fixed)}
        self.latest = 0.0

    def find(self, secret: bytes) -> Key | None:
        """The key with this text, None if there is none. Compares all keys in constant time."""
        digest = hashlib.sha256(secret).digest()
        keys = self.keys
        # Not `in`: its time depends on how many bytes of a digest agree.
        matches = [each for each in keys if hmac.compare_digest(digest, each)]
        return keys[matches[0]] if matches else None

    def expired(self, key: Key) -> bool:
        """Whether a key has expired."""
        self.latest = max(self.latest, self.clock())
        return key.expired(self.latest)

    def caller(self, key: Key) -> Caller:
        """The caller that a key identifies."""
        return Caller(
            name=key.name,
            scopes=frozenset({*key.scopes, "open"}),
            models=key.models,
            adapters=key.adapters,
            priority=key.priority,
            salt=self.salt(key.name),
        )

    def key_of(self, name: str) -> Key | None:
        """The key of a name, None if there is none."""
        return next((each for each in self.keys.values() if each.name == name), None)

    def named(self, name: str) -> tuple[Caller, Key | None] | None:
        """The caller of this name and its key, as of now; None if the key is gone or expired."""
        key = self.key_of(name)
        if key is None:
            return (self.anonymous(), None) if self.knows(name) else None
        return None if self.expired(key) else (self.caller(key), key)

    def knows(self, name: str) -> bool:
        """Whether a key has this name; "" is the caller without a key, if requests need none."""
        return self.key_of(name) is not None if name else not self.locked

    def anonymous(self) -> Caller:
        """The caller of a request without a key, on a server whose routes need none."""
        scopes: set[Scope] = {"open", "infer", "metrics"}
        if not self.has_admin:
            return Caller(scopes=frozenset({*scopes, "admin"}))
        return Caller(scopes=frozenset(scopes), salt=self.salt(""))

    def salt(self, name: str) -> str:
        return "" if self.share_prefixes else f"{self.secret} {name}"


def plain_key(name: str, text: str, *scopes: Literal["infer", "admin", "metrics"]) -> Key:
    """A key of the command line. Names in files have no space, so the names cannot collide."""
    return Key(name=name, sha256=sha256_of(text), scopes=frozenset(scopes))


def sha256_of(text: str) -> str:
    """The SHA-256 of a key, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def new_key() -> str:
    """A random key of 256 bits."""
    return PREFIX + token_urlsafe(32)


def read_keys(file: Path) -> list[Key]:
    """The keys of a file. Raises UsageError if it is unreadable, malformed or has no key.

    Logs a warning if other users can read or change the file.
    """
    try:
        keys = parse_keys(read_text(file))
    except UsageError as error:
        raise UsageError(f"--keys {file}: {error}") from None
    if (mode := file.stat().st_mode) & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
        shown = stat.filemode(mode)
        log.warning("--keys %s: other users may read or change it (%s); chmod 600", file, shown)
    return keys


def read_text(file: Path) -> str:
    """The text of a file of an operator. Raises UsageError if it is unreadable or very large."""
    try:
        return read_regular(file, MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(reason_of(error)) from None


def parse_toml(text: str) -> dict[str, Any]:
    """The values of a TOML document. Raises UsageError, with the line at fault."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"invalid TOML: {error}") from None


def parse_keys(text: str) -> list[Key]:
    """The keys of a TOML document. Raises UsageError, with the line or the key at fault."""
    document = parse_toml(text)
    for name in document.keys() - {"keys", *CONFIG_TABLES}:
        raise UsageError(f"unknown table {name!r:.80}; write [[keys]] before each key")
    entries = document.get("keys")
    if not isinstance(entries, list) or not entries:
        raise UsageError("contains no key; write [[keys]] before each key")
    keys = [parse_key(i, entry) for i, entry in enumerate(entries, 1)]
    for field in ("name", "sha256"):
        (value, count), *_ = Counter(getattr(key, field) for key in keys).most_common(1)
        if count > 1:
            raise UsageError(f"{count} keys have the {field} {value!r}")
    return keys


def parse_key(number: int, entry: Any) -> Key:
    """The key of a table. Raises UsageError for a field that is missing, unknown or malformed."""
    if not isinstance(entry, dict):
        raise UsageError(f"key {number}: expected a table; write [[keys]] before each key")
    name = entry.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UsageError(
            f"key {number}: name {name!r:.80} is not 1 to 64 letters, digits, '_', '.' or '-'"
        )
    for field in entry.keys() - {*Key.__struct_fields__}:
        near = nearest(field, Key.__struct_fields__, n=1)
        raise UsageError(f"key {name!r}: unknown field {field!r:.80}{near}")
    sha256 = entry.get("sha256")
    if not isinstance(sha256, str) or not SHA256.fullmatch(sha256):
        raise UsageError(
            f"key {name!r}: sha256 is not 64 hexadecimal digits; `ostro keys new` prints it"
        )
    try:
        return msgspec.convert({**entry, "sha256": sha256.lower()}, Key)
    except msgspec.ValidationError as error:
        reason, _, field = str(error).partition(" - at `$.")
        raise UsageError(f"key {name!r}: {field.strip('`')}: {reason}") from None
