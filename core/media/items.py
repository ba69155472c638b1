"""Media of prompts as plain data: arrays, items, and an architecture's media processor.

An `Item` is one image, video or audio: the arrays that the model's `encode` reads, a hash of their
contents, and the rows that its features take in the prompt. The number of rows is known before
anything is encoded, so that prompts are planned, hashed and rejected without the device.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec.structs import replace

from ostro.core.errors import EngineDied, InsufficientMemory, RequestError, Unsupported

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


def name_file() -> Path:
    """A new path in shared memory that contains the id of this process."""
    return SHARED / f"ostro-{os.getpid()}-{secrets.token_hex(12)}"


def sweep(process: int) -> None:
    """Remove the files that a process has left in shared memory."""
    for path in SHARED.glob(f"ostro-{process}-*"):
        path.unlink(missing_ok=True)


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One image, video or audio of a prompt, ready to be encoded.

    key: hash of everything that its features depend on. arrays: the inputs of the model's `encode`.
    spans, of inline media: (start, count) in tokens, the rows of the prompt whose embeddings the
    features replace, in order; a step never begins or ends within a span of an `atomic` item.
    since, of media in a cross cache: the first token that attends to the item, until the next such
    item; `length` is the number of its rows in the cache. cost: rows of the encoder, which limit
    the items that one step encodes. tokens: the tokens that replace its placeholder, with `pad` at
    its rows; used by `Inputs.expand_placeholders` only.
    """

    kind: str
    key: bytes
    arrays: dict[str, Array]
    spans: tuple[tuple[int, int], ...] = ()
    since: int | None = None
    length: int = 0
    atomic: bool = False
    cost: int = 1
    tokens: tuple[int, ...] = ()
    pad: int = -1

    @property
    def first(self) -> int:
        """The first token that needs its features."""
        return self.since if self.since is not None else self.spans[0][0]

    @property
    def rows(self) -> int:
        """The number of rows that its features have in the prompt."""
        return sum(count for _, count in self.spans)


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt with its media.

    positions: [axes, T] int32, None for 0, 1, 2, ...; the positions of generated tokens continue
    from the largest.
    """

    tokens: list[int]
    items: list[Item] = []
    positions: Array | None = None

    def change(self, change: Callable[[Array], Array]) -> Prompt:
        """The prompt with `change` applied to the arrays of its items."""
        items = [
            replace(item, arrays={name: change(array) for name, array in item.arrays.items()})
            for item in self.items
        ]
        return replace(self, items=items)

    def drop(self) -> None:
        """Remove the files of its arrays."""
        for item in self.items:
            for array in item.arrays.values():
                array.drop()


def content_key(*facts: object) -> bytes:
    """The hash of an item's arrays and of the other values that its features depend on."""
    import numpy as np

    state = hashlib.blake2b(digest_size=16)
    for fact in facts:
        if isinstance(fact, np.ndarray):
            state.update(f"{fact.dtype.str}{fact.shape}".encode())
            state.update(np.ascontiguousarray(fact).data)
        else:
            state.update(repr(fact).encode())
    return state.digest()


class Inputs:
    """The media processor of an architecture: a subclass overrides the kinds that it supports.

    It runs in a worker process apart from the server and the engine, and imports no torch. raw: the
    parsed config.json. folder: the folder of the model.
    """

    rate: ClassVar[int] = 16000
    """Sample rate of `audio`, in Hz."""
    voices: ClassVar[Sequence[str]] = ()
    """Names of the voices of `speech`."""

    def __init__(self, raw: Mapping[str, Any], folder: Path) -> None:
        self.raw, self.folder = raw, folder

    @property
    def placeholders(self) -> Mapping[str, int]:
        """For each supported kind the token id that a chat template writes for one item."""
        return {}

    def image(self, pixels: np.ndarray[Any, Any]) -> Item:
        """Make an item of one image, uint8 [height, width, 3] in RGB."""
        raise Unsupported("this model does not support images", param="messages")

    def video(self, frames: np.ndarray[Any, Any], fps: float) -> Item:
        """Make an item of one video, uint8 [frames, height, width, 3] at `fps` per second."""
        raise Unsupported("this model does not support video", param="messages")

    def audio(self, samples: np.ndarray[Any, Any]) -> Item:
        """Make an item of one audio, float32 [n] in -1..1 at `rate` Hz."""
        raise Unsupported("this model does not support audio", param="messages")

    def drawing(
        self, prompt: str, second: str | None, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The engine request for an image: the prompt's tokens, width, height and further options,
        as requested or as the model's defaults. `second` is the prompt of a second text encoder.
        """
        raise Unsupported("this model does not generate images")

    def count_tokens(
        self, prompt: str, second: str | None, width: int, height: int
    ) -> tuple[int, int]:
        """The tokens of a prompt of `drawing`, and of an image of this size: the usage of a
        request. 0 for a model without tokens.
        """
        return 0, 0

    def speech(self, text: str, voice: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
        """The engine request for speech: the text's tokens, max_seconds, temperature, top_p and
        guidance, as requested or as the model's defaults.

        Raises RequestError for an unknown voice.
        """
        raise Unsupported("this model does not synthesize speech")

    def expand_placeholders(self, tokens: Sequence[int], items: Sequence[Item]) -> Prompt:
        """Replace the placeholders in a prompt by the tokens of items, in order.

        Raises RequestError if the number of placeholders differs from the number of items.
        """
        kinds = {token: kind for kind, token in self.placeholders.items()}
        out, placed, left = list[int](), list[Item](), list(items)
        for token in tokens:
            if token not in kinds:
                out.append(token)
            elif not left or kinds[token] not in (left[0].kind, "media"):
                raise RequestError(
                    f"item {len(placed) + 1} of the prompt is {kinds[token]}, got "
                    f"{'nothing' if not left else left[0].kind}; send media in the order of their "
                    "placeholders",
                    param="messages",
                )
            else:
                placed.append(settle(left.pop(0), len(out)))
                out += placed[-1].tokens
        if left:
            raise RequestError(
                f"{len(left)} of {len(items)} media have no placeholder in the prompt; the model's "
                "chat template does not write one for them",
                param="messages",
            )
        placed = [replace(item, tokens=(), pad=-1) for item in placed]
        return Prompt(tokens=out, items=placed, positions=self.positions(out, placed))

    def positions(self, tokens: Sequence[int], items: Sequence[Item]) -> Array | None:
        """Positions [axes, T] int32 of a prompt, None for 0, 1, 2, ..."""
        return None


def settle(item: Item, start: int) -> Item:
    """Set the spans of an item whose tokens begin at `start`."""
    spans = list[tuple[int, int]]()
    for i, token in enumerate(item.tokens, start):
        if token != item.pad:
            continue
        if spans and sum(spans[-1]) == i:
            spans[-1] = (spans[-1][0], spans[-1][1] + 1)
        else:
            spans.append((i, 1))
    return replace(item, spans=tuple(spans))
