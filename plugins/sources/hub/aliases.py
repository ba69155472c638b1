"""Short names of hub models, from aliases.json, with the hashes of their files where known."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files
from pathlib import Path

from ostro import Alias
from ostro.errors import ModelNotFound


@cache
def aliases() -> dict[str, Alias]:
    """All aliases by name."""
    listed = json.loads((files(__package__) / "aliases.json").read_text("utf-8"))
    return {name: Alias(name=name, **fields) for name, fields in listed.items()}


def verify(path: Path, name: str, alias: Alias) -> None:
    """Compare a downloaded file with the hash of its alias.

    Removes a file with another hash from the cache, and raises ModelNotFound.
    """
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found == alias.sha256:
        return
    path.resolve().unlink()
    path.unlink(missing_ok=True)
    raise ModelNotFound(
        f"{name}: the file of {alias.reference} has sha256 {found}, expected {alias.sha256}; it "
        f"was removed. Use {alias.reference} instead of {name} to accept the new file"
    )
