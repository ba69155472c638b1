"""What passes between an engine and its client, and how it lies on a socket.

On a socket a message is its length (4 bytes, little endian) and then MessagePack. Nothing but plain
data crosses: no pickles, no code, no tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec
from msgspec.structs import replace

from ostro.core import errors
from ostro.core.engine.request import (
    DEFAULT,
    JobOutput,
    JobRequest,
    Output,
    Request,
    Stats,
    TokenRequest,
)
from ostro.core.errors import EngineDied, OstroError
from ostro.core.media import Array
from ostro.core.records import Settings

M = TypeVar("M")

LENGTH = 4
LIMIT = 1 << 30
"""Bytes of one message; a longer one is a broken peer."""


class ModelSpec(msgspec.Struct):
    """A model to load: `eos_ids` are its tokenizer's, which the engine process does not load."""

    settings: Settings
    eos_ids: list[int] = []


class StartEngine(msgspec.Struct, kw_only=True, tag=True):
    """The first message to an engine process: what to load, and the registry it must find too."""

    models: list[ModelSpec]
    plugin_paths: list[str]
    registry: dict[str, str]


class Progress(msgspec.Struct, tag=True):
    """How far loading has come: `done` of `total` in units of `what` (0 of 0 where unknown)."""

    what: str
    done: int = 0
    total: int = 0


class ModelInfo(msgspec.Struct, kw_only=True):
    """What an engine knows of a model, in tokens; all 0 for one that has none."""

    context: int = 0
    vocab: int = 0
    eos_ids: list[int] = []


class Ready(msgspec.Struct, kw_only=True, tag=True):
    """The engine has drawn its first token. `models` by name, the default one first."""

    models: dict[str, ModelInfo]
    explain: list[str] = []
    digest: str = ""

    @property
    def first(self) -> ModelInfo:
        return next(iter(self.models.values()))


class Failed(msgspec.Struct, kw_only=True, tag=True):
    """An error on its way to where it is raised; `id` is the request it belongs to, if any."""

    kind: str
    message: str
    param: str | None = None
    id: str | None = None

    @classmethod
    def of(cls, error: BaseException, id: str | None = None) -> Failed:
        """Describe an error; a kind that is not ours keeps its name in the message."""
        if isinstance(error, OstroError):
            kind, message, param = type(error).__name__, str(error), error.param
        else:
            kind, message, param = "", f"{type(error).__name__}: {error}", None
        return cls(kind=kind, message=message, param=param, id=id)

    def error(self) -> OstroError:
        """The same error on this side."""
        unknown = EngineDied if self.id is None else OstroError
        kind = getattr(errors, self.kind, None) if self.kind else unknown
        if not (isinstance(kind, type) and issubclass(kind, OstroError)):
            kind = OstroError
        return kind(self.message, param=self.param)


class Abort(msgspec.Struct, tag=True):
    """Drop a request, or the choice `index` of it, and free what it holds."""

    id: str
    index: int | None = None


class GetStats(msgspec.Struct, tag=True):
    """Ask for `Stats`."""


class Requantize(msgspec.Struct, kw_only=True, tag=True):
    """Bring a model's weights to other formats, once all that was asked before is done.

    `quant` and `topology` as in `Settings`; neither is the checkpoint's own.
    """

    id: str
    model: str = DEFAULT
    quant: str | None = None
    topology: str | None = None


class Requantized(msgspec.Struct, tag=True):
    """The weights are in the formats that `id` asked for: what was chosen, a line each."""

    id: str
    explain: list[str]


class AdapterCommand(msgspec.Struct, kw_only=True, tag=True):
    """Load, unload or read an adapter of a model, register one that is read when it is first asked
    for, or tell of all; see `core.adapters.registry`.
    """

    id: str
    do: Literal["load", "unload", "read", "register", "list"]
    model: str = DEFAULT
    name: str = ""
    reference: str = ""
    inplace: bool = False
    expected: str | None = None
    pinned: bool = False


class AdapterInfo(msgspec.Struct, kw_only=True):
    """What is known of an adapter by its name; what is below `loaded` only once it is read.

    `requests` have asked for it by this name, `running` ones are under way with its generation.
    `effect` is how much it changes what the model says, where that could be tried; `norms` are of
    what it adds to each weight, which only Python is told.
    """

    name: str
    reference: str
    generation: str = ""
    pinned: bool = False
    requests: int = 0
    running: int = 0
    loaded: bool = False
    resident: bool = False
    kind: str = ""
    rank: int = 0
    base: str = ""
    nbytes: int = 0
    effect: float | None = None
    modules: int = 0
    norms: dict[str, float] = {}
    invocation: list[int] = []
    template: str | None = None


class AdapterResult(msgspec.Struct, tag=True):
    """What `id` asked for is done; the adapters of the model as they are now."""

    id: str
    adapters: list[AdapterInfo]


class Close(msgspec.Struct, tag=True):
    """Drop everything and end."""


class Outputs(msgspec.Struct, tag=True):
    """What one pass of the loop has produced."""

    outputs: list[Output]


ToEngine = StartEngine | Request | Abort | GetStats | Requantize | AdapterCommand | Close
FromEngine = Progress | Ready | Failed | Outputs | Stats | Requantized | AdapterResult
to_engine = msgspec.msgpack.Decoder(ToEngine)
from_engine = msgspec.msgpack.Decoder(FromEngine)
_encoder = msgspec.msgpack.Encoder()


def frame(message: ToEngine | FromEngine) -> bytes:
    """A message as it is written to a socket."""
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH, "little") + body


def carry(message: M, change: Callable[[Array], Array]) -> M:
    """The message with its arrays changed: shared before it crosses, read after."""
    if isinstance(message, TokenRequest) and message.items:
        items = [replace(i, arrays=changed(i.arrays, change)) for i in message.items]
        positions = None if message.positions is None else change(message.positions)
        return replace(message, items=items, positions=positions)
    if isinstance(message, JobRequest):
        return replace(message, arrays=changed(message.arrays, change))
    if isinstance(message, Outputs):
        for output in message.outputs:
            if isinstance(output, JobOutput):
                output.arrays = changed(output.arrays, change)
    return message


def drop(message: ToEngine) -> None:
    """Remove what a message's arrays have left in shared memory: nobody will read it now."""

    def remove(array: Array) -> Array:
        array.drop()
        return array

    carry(message, remove)


def changed(arrays: dict[str, Array], change: Callable[[Array], Array]) -> dict[str, Array]:
    return {name: change(array) for name, array in arrays.items()}


class Frames:
    """Cuts the bytes of a socket into the bodies of messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes in and give the bodies that are complete. Raises EngineDied for nonsense."""
        buffer = self._buffer
        buffer += data
        bodies, start = [], 0
        while len(buffer) - start >= LENGTH:
            size = int.from_bytes(buffer[start : start + LENGTH], "little")
            if size > LIMIT:
                raise EngineDied(f"a message between the processes claims {size} bytes")
            end = start + LENGTH + size
            if len(buffer) < end:
                break
            bodies.append(bytes(buffer[start + LENGTH : end]))
            start = end
        del buffer[:start]
        return bodies
