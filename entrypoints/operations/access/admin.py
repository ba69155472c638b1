"""Access control of the routes that load models and adapters."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ostro.core.errors import AdapterError, AdapterForbidden, AdapterNotFound, UsageError
from ostro.core.paths import resolve_path
from ostro.entrypoints.operations.access.keys import KeyRing

MAX_PATH = 4096
"""Limit on the length of a path, in characters."""
MAX_FILES = 10_000
"""Limit on the files in an adapter's folder."""


class LoadingDisabled(AdapterError):
    """The server has no folder to load adapters from."""

    status, code = 404, "lora_loading_disabled"


@dataclass(frozen=True)
class Admin:
    """Access control of the routes.

    root: resolved folder that adapters or models are loaded from, None to disable loading. open:
    the server has no keys at all. option: the option that sets the root.
    """

    root: Path | None = None
    open: bool = True
    option: str = "--adapter-root"

    @classmethod
    def of(cls, root: str | Path | None, ring: KeyRing, option: str = "--adapter-root") -> Admin:
        """Raises UsageError if the root is not a folder."""
        found = None if root is None else Path(root).expanduser().resolve()
        if found is not None and not found.is_dir():
            raise UsageError(f"{option} {root}: not a folder")
        return cls(found, not ring.locked and not ring.has_admin, option)

    def check(self) -> None:
        """Raise LoadingDisabled if the routes are disabled: without keys, they require a root."""
        if self.root is None and self.open:
            raise LoadingDisabled(f"these routes require {self.option} or --admin-key")

    def find(self, given: str) -> Path:
        """The path of an adapter or a model.

        Raises LoadingDisabled without a root, AdapterNotFound if it does not exist, and
        AdapterForbidden if the path, or a link in the folder, leads out of the root.
        """
        if self.root is None:
            raise LoadingDisabled(f"start the server with {self.option} to load from it")
        if len(given) > MAX_PATH or (found := self.inside(self.root / given)) is None:
            raise self.outside(given)
        if not os.path.exists(found):
            raise AdapterNotFound(f"{given!r:.200} does not exist", param="lora_path")
        for number, path in enumerate(entries(found)):
            if number >= MAX_FILES:
                raise AdapterError(f"{given!r:.200} has more than {MAX_FILES} files")
            if self.inside(path) is None:
                raise self.outside(given)
        return found

    def inside(self, path: Path) -> Path | None:
        """The resolved path, None if it is not within the root."""
        try:
            found = resolve_path(path)
        except (OSError, ValueError):
            return None
        return found if self.root in found.parents else None

    def outside(self, given: str) -> AdapterForbidden:
        return AdapterForbidden(
            f"{given!r:.200} is outside of {self.option}",
            param="lora_path",
        )

    def shown(self, error: AdapterError) -> AdapterError:
        """The error, with the path of the root removed from its message."""
        message = str(error).replace(f"{self.root}{os.sep}", "").replace(str(self.root), "")
        return type(error)(message, param=error.param)


def entries(path: Path) -> Iterator[Path]:
    """The files and folders in a folder, recursively; links are not followed."""
    for at, folders, files in os.walk(path):
        yield from (Path(at) / name for name in (*folders, *files))
