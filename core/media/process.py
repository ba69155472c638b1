"""The worker process that decodes media, and its messages. `python -m` runs this module.

Files may be hostile: the server's own process never reads them. The process keeps nothing from one
message to the next.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from ostro.core.errors import Fact, OstroError, RequestError, describe_error
from ostro.core.media.inputs import Inputs
from ostro.core.messages.arrays import Array, sweep
from ostro.core.messages.prompt import Item, Prompt
from ostro.core.records import resolve
from ostro.core.worker import frame

if TYPE_CHECKING:
    from ostro.core.media.decode import Pixels
    from ostro.core.media.sound import Samples

MEMORY = 16 << 30
"""Limit on the worker's address space in bytes; libraries map more than they use."""


class MediaSource(msgspec.Struct, frozen=True):
    """One image, video or audio of a request: its kind and the contents of its file."""

    kind: str
    data: bytes


class MeasureRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request to the worker: read the header of a file."""

    source: MediaSource


class PrepareRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request to the worker: decode a file and make the item of a prompt."""

    source: MediaSource


class PlaceRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request to the worker: place items in a prompt, in the order of their indices."""

    tokens: list[int]
    items: list[Item]
    indices: list[int]


class DecodeRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request to the worker: decode an image file, or an audio file to samples at `rate` Hz."""

    source: MediaSource
    rate: int = 0


class ErrorReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A reply of the worker: an OstroError, by the fields of `describe_error`."""

    kind: str
    message: str
    param: str | None = None
    status: int | None = None
    code: str | None = None
    facts: dict[str, Fact] | None = None


class MeasureReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A reply of the worker: what the header of a file states.

    size: the pixels of an image or of all frames of a video, the samples of all channels of a
    sound; the header of a video or a sound may state less than there is. tokens: at least the
    tokens of its item, None if they depend on more than the header.
    """

    size: int
    tokens: int | None = None


class ItemReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A reply of the worker: an item, with its large arrays in shared memory."""

    item: Item


class PromptReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A reply of the worker: the prompt, with its large arrays in shared memory."""

    prompt: Prompt


class ArrayReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A reply of the worker: pixels or samples, in shared memory."""

    array: Array


Message = MeasureRequest | PrepareRequest | PlaceRequest | DecodeRequest
Reply = MeasureReply | ItemReply | PromptReply | ArrayReply


def measure(inputs: Inputs, source: MediaSource) -> MeasureReply:
    """Read the header of a file. Raises RequestError or Unsupported for what cannot be decoded."""
    from ostro.core.media.decode import measure_image, measure_video
    from ostro.core.media.sound import measure_sound

    try:
        if source.kind == "image":
            width, height = measure_image(source.data)
            # The header may hide that the image is turned.
            counts = [inputs.image_tokens(*size) for size in ((width, height), (height, width))]
            tokens = min((count for count in counts if count is not None), default=None)
            return MeasureReply(size=width * height, tokens=tokens)
        if source.kind == "video":
            return MeasureReply(size=measure_video(source.data))
        return MeasureReply(size=measure_sound(source.data))
    except RequestError as error:
        error.param = "messages"
        raise


def make_item(inputs: Inputs, source: MediaSource) -> Item:
    """Decode a file and make its item. Raises RequestError or Unsupported."""
    from ostro.core.media.decode import read_image, read_video
    from ostro.core.media.sound import read_sound

    try:
        if source.kind == "image":
            return inputs.image(read_image(source.data))
        if source.kind == "video":
            return inputs.video(*read_video(source.data))
        return inputs.audio(read_sound(source.data, inputs.rate))
    except RequestError as error:
        error.param = "messages"
        raise


def decode(request: DecodeRequest) -> Pixels | Samples:
    """The pixels of an image file, or the samples of an audio file."""
    from ostro.core.media.decode import read_image
    from ostro.core.media.sound import read_sound

    data = request.source.data
    return read_image(data) if request.source.kind == "image" else read_sound(data, request.rate)


def handle(make: Callable[[], Inputs], message: Message) -> Reply:
    """Do what a message asks for. Raises RequestError or Unsupported."""
    if isinstance(message, MeasureRequest):
        return measure(make(), message.source)
    if isinstance(message, PrepareRequest):
        return ItemReply(item=make_item(make(), message.source).change(Array.share))
    if isinstance(message, PlaceRequest):
        items = [message.items[index] for index in message.indices]
        prompt = make().expand_placeholders(message.tokens, items)
        return PromptReply(prompt=prompt.change(Array.share))
    return ArrayReply(array=Array.of(decode(message)).share())


def answer(make: Callable[[], Inputs], data: bytes) -> Reply | ErrorReply:
    """Handle one message. Errors become an ErrorReply."""
    try:
        return handle(make, msgspec.msgpack.decode(data, type=Message))
    except OstroError as error:
        reply = ErrorReply(**describe_error(error))
    except MemoryError:
        text = "preparing the media exceeds the memory limit; send smaller ones"
        reply = ErrorReply(kind="RequestError", message=text, param="messages")
    except Exception:
        traceback.print_exc()
        text = "the media could not be prepared; see the server's log"
        reply = ErrorReply(kind="OstroError", message=text, param="messages")
    sweep(os.getpid())
    return reply


def limit_resources() -> None:
    """Limit the memory of this process, within the limit of the server, and disable core dumps."""
    try:
        import resource
    except ImportError:  # not Unix: the time limit of the parent remains
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    memory = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Handle messages until stdin ends, which it does when the parent ends."""
    limit_resources()
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with replies
    reference, raw, folder = msgspec.msgpack.decode(read_frame(requests))
    make = cache(lambda: resolve(reference)(raw, Path(folder)))
    while data := read_frame(requests):
        replies.write(frame(msgspec.msgpack.encode(answer(make, data))))
        replies.flush()


def read_frame(file: BinaryIO) -> bytes:
    """The next frame, b"" at the end."""
    return file.read(int.from_bytes(file.read(8), "little"))


def environment() -> dict[str, str]:
    """The environment of the worker: that of this process, with its import path."""
    paths = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))
    return {**os.environ, "PYTHONPATH": paths}


if __name__ == "__main__":
    main()
