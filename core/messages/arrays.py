"""Arrays as plain data: bytes in a message, or a file in shared memory."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from ostro.core.errors import EngineDied, InsufficientMemory

if TYPE_CHECKING:
    import numpy as np

SHARED = Path("/dev/shm")
"""The folder of files that processes share; in memory on Linux."""

SMALL = 1 << 16
"""Arrays of at most this many bytes are sent inside messages."""


class Array(msgspec.Struct, frozen=True, kw_only=True, weakref=True):
    """An array as plain data: bytes, or a file in shared memory that is read once.

    dtype: numpy's name, such as "<f4". digest: blake2b of the file's contents, 16 bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes = b""
    file: str = ""
    digest: bytes = b""

    @classmethod
    def of(cls, values: np.ndarray[Any, Any]) -> Array:
        """Convert a numpy array. Raises TypeError for dtypes that are not numeric."""
        if values.dtype.kind not in "fiub":
            raise TypeError(f"expected a numeric array, got {values.dtype}")
        return cls(dtype=values.dtype.str, shape=values.shape, data=values.tobytes())

    @property
    def nbytes(self) -> int:
        """The bytes of its values."""
        return math.prod(self.shape) * int(self.dtype[2:])

    def share(self) -> Array:
        """Move a large array to a file in shared memory that only this user may read.

        A small array is returned unchanged. Raises InsufficientMemory if shared memory is full.
        """
        if self.file or len(self.data) <= SMALL:
            return self
        path = name_file()
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with open(descriptor, "wb") as file:
                file.write(self.data)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise InsufficientMemory(
                f"{SHARED} cannot store {len(self.data) >> 10} KiB ({error.strerror}); send "
                "smaller media, or enlarge it (docker run --shm-size)"
            ) from None
        digest = hashlib.blake2b(self.data, digest_size=16).digest()
        return replace(self, data=b"", file=str(path), digest=digest)

    def take(self) -> Array:
        """Take over the file of another process; it is removed with the array at the latest."""
        if not self.file:
            return self
        path = name_file()
        os.rename(self.file, path)
        taken = replace(self, file=str(path))
        weakref.finalize(taken, path.unlink, missing_ok=True)
        return taken

    def drop(self) -> None:
        """Remove the file of an array that was not read."""
        if self.file:
            Path(self.file).unlink(missing_ok=True)

    def read(self) -> Array:
        """Read the array from its file and remove the file.

        Raises EngineDied if the file is missing or has other contents than were written.
        """
        if not self.file:
            return self
        path = Path(self.file)
        if path.parent != SHARED or not path.name.startswith("ostro-"):
            raise EngineDied(f"{path} is not the file of a shared array")
        try:
            data = path.read_bytes()
        except OSError as error:
            raise EngineDied(f"a shared array cannot be read: {error}") from None
        path.unlink(missing_ok=True)
        if hashlib.blake2b(data, digest_size=16).digest() != self.digest:
            raise EngineDied(f"the shared array {path.name} has other contents than were written")
        return replace(self, data=data, file="", digest=b"")

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values, read-only."""
        import numpy as np

        return np.frombuffer(self.read().data, np.dtype(self.dtype)).reshape(self.shape)


def change_once(change: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """`change`, called once for each array: equal items of a message share their arrays."""
    changed: dict[str | int, Array] = {}

    def change_new(array: Array) -> Array:
        known = array.file or id(array)
        if known not in changed:
            changed[known] = change(array)
        return changed[known]

    return change_new


def name_file() -> Path:
    """A new path in shared memory that contains the id of this process."""
    return SHARED / f"ostro-{os.getpid()}-{secrets.token_hex(12)}"


def sweep(process: int) -> None:
    """Remove the files that a process has left in shared memory."""
    for path in SHARED.glob(f"ostro-{process}-*"):
        path.unlink(missing_ok=True)
