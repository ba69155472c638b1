"""The encoding of messages on a socket between an engine and its client.

A message is its length (4 bytes, little endian), then MessagePack. Messages are plain data: no
pickles, no code, no tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from ostro.core.errors import EngineDied, RequestError
from ostro.core.messages.arrays import Array, change_once
from ostro.core.messages.commands import FromEngine, Outputs, ToEngine
from ostro.core.messages.outputs import JobOutput
from ostro.core.messages.requests import JobRequest, TokenRequest

M = TypeVar("M")

LENGTH = 4
LIMIT = 1 << 30
"""Most bytes of one message: a longer one shows that the peer is broken."""
INTEGERS = "-2^63..2^64-1"
"""The integers of MessagePack."""


to_engine = msgspec.msgpack.Decoder(ToEngine)
from_engine = msgspec.msgpack.Decoder(FromEngine)
_encoder = msgspec.msgpack.Encoder()


def frame(message: msgspec.Struct) -> bytes:
    """The bytes of a message on a socket. Raises RequestError for an integer beyond 64 bits."""
    try:
        body = _encoder.encode(message)
    except OverflowError:
        raise RequestError(f"the request has an integer that is not within {INTEGERS}") from None
    return len(body).to_bytes(LENGTH, "little") + body


def map_arrays(message: M, change: Callable[[Array], Array]) -> M:
    """The message with `change` applied to its arrays: `Array.share` before it is sent to another
    process, `Array.read` after it was received.
    """
    if isinstance(message, TokenRequest) and message.items:
        change = change_once(change)  # equal items share their arrays
        items = [item.change(change) for item in message.items]
        positions = None if message.positions is None else change(message.positions)
        return replace(message, items=items, positions=positions)
    if isinstance(message, JobRequest):
        return replace(message, arrays=mapped(message.arrays, change))
    if isinstance(message, Outputs):
        for output in message.outputs:
            if isinstance(output, JobOutput):
                output.arrays = mapped(output.arrays, change)
    return message


def free_arrays(message: ToEngine) -> None:
    """Free the shared memory of a message's arrays that no process has read."""

    def free(array: Array) -> Array:
        array.drop()
        return array

    map_arrays(message, free)


def mapped(arrays: dict[str, Array], change: Callable[[Array], Array]) -> dict[str, Array]:
    return {name: change(array) for name, array in arrays.items()}


class Frames:
    """Splits the bytes of a socket into the bodies of messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()  # the begin of a message that is not complete

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return the bodies that are complete.

        Raises EngineDied for a message longer than `LIMIT`.
        """
        buffer = self._buffer
        buffer += data
        bodies, start = [], 0
        while len(buffer) - start >= LENGTH:
            size = int.from_bytes(buffer[start : start + LENGTH], "little")
            # Checked before the body arrives: a broken length would fill the memory.
            if size > LIMIT:
                raise EngineDied(
                    f"a message between the processes has {size} bytes, the limit is {LIMIT}"
                )
            end = start + LENGTH + size
            if len(buffer) < end:
                break
            bodies.append(bytes(buffer[start + LENGTH : end]))
            start = end
        del buffer[:start]
        return bodies
