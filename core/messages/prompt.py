"""Prompts and their media as plain data.

An `Item` is one image, video or audio: the arrays that the model's `encode` reads, a hash of their
contents, and the rows that its features take in the prompt. The number of rows is known before
anything is encoded, so that prompts are planned, hashed and rejected without the device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from ostro.core.messages.arrays import Array, change_once


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

    def drop(self) -> None:
        """Remove the files of its arrays."""
        for array in self.arrays.values():
            array.drop()

    @property
    def nbytes(self) -> int:
        """The bytes of its arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def change(self, change: Callable[[Array], Array]) -> Item:
        """The item with `change` applied to its arrays."""
        return replace(self, arrays={name: change(array) for name, array in self.arrays.items()})

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
        """The prompt with `change` applied to the arrays of its items, once to each."""
        change = change_once(change)
        return replace(self, items=[item.change(change) for item in self.items])

    def drop(self) -> None:
        """Remove the files of its arrays."""
        for item in self.items:
            item.drop()


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
