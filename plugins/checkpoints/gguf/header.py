"""The GGUF header: parse and validate metadata and the tensor table.

Little endian: magic "GGUF", u32 version, u64 tensor count, u64 key count; the keys (name, u32 type,
value); the tensor table (name, u32 number of dimensions, u64 dimensions with rows last, u32 ggml
type, u64 offset into the data); padding; the data. Strings are a u64 length and UTF-8. Source: the
GGUF specification of the ggml project, versions 2 and 3, which are equal in all parts that this
module reads.
"""

from __future__ import annotations

from math import prod
from struct import Struct
from typing import Any, NoReturn

import numpy as np

from ostro import TensorInfo
from ostro.checkpoints import (
    GGML_TYPES,
    GGML_WITHDRAWN,
    MAX_NAME,
    GgmlType,
    MappedFile,
    TensorLocation,
    tensor_fault,
)
from ostro.errors import CheckpointError
from ostro.plugins.checkpoints.gguf import MAGIC

# The largest known header, with a vocabulary of 262 thousand tokens and its merges, has 14 MB and
# 0.8 million items. The limits bound the time and memory that a hostile file can take.
MAX_HEADER = 64 << 20
MAX_ITEMS = 1 << 21
MAX_LINES = 1 << 17
MAX_KEY = (1 << 16) - 1
MAX_DEPTH = 4
MAX_GGML_DIMS = 4

STRING, ARRAY, BOOL = 8, 9, 7
SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, BOOL, 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""GGUF value type -> struct (and numpy) code."""

# The smallest size of an entry: bounds a count before memory is allocated for it.
KEY_BYTES = 8 + 1 + 4 + 1
TENSOR_BYTES = 8 + 1 + 4 + 4 + 8

U32, U64 = Struct("<I"), Struct("<Q")


class Header:
    """Parses a file's header. Errors read "<file>@offset N: reason"."""

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        self._bytes = file.data.data
        self._end = min(file.size, MAX_HEADER)
        self._at = 0
        self._items = MAX_ITEMS

    def read(self) -> tuple[dict[str, TensorLocation], dict[str, Any]]:
        """The locations of the tensors, and the metadata.

        Metadata values are str, bool, int, float, list[str], lists of arrays, and numpy arrays
        (read-only views of the file). A string that is not UTF-8, as tokens may be, holds its
        bytes as surrogates (`errors="surrogateescape"`).
        """
        n_tensors, n_keys = self._preamble()
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            at = self._at
            key = self._name("key", MAX_KEY)
            if key in metadata:
                self._fail(f"key {key!r} occurs twice", at)
            metadata[key] = self._value(self._number(U32))
        table = [self._tensor() for _ in range(n_tensors)]
        return self._locations(table, self._alignment(metadata)), metadata

    def _preamble(self) -> tuple[int, int]:
        if not self._file.size:
            self._fail("the file is empty; download it again", 0)
        if self._take(4) != MAGIC:
            self._fail("not a GGUF file: it does not begin with 'GGUF'", 0)
        version = self._number(U32)
        if version and not version & 0xFFFF:
            self._fail("is big-endian; convert the model again for little endian", 4)
        if version not in (2, 3):
            self._fail(f"GGUF version {version} is not supported; 2 and 3 are", 4)
        n_tensors, n_keys = self._number(U64), self._number(U64)
        self._expect(n_tensors, TENSOR_BYTES, "tensors")
        self._expect(n_keys, KEY_BYTES, "keys")
        if max(n_tensors, n_keys) > MAX_LINES:
            self._fail(f"more than {MAX_LINES} tensors or keys")
        return n_tensors, n_keys

    def _fail(self, reason: str, at: int | None = None) -> NoReturn:
        offset = self._at if at is None else at
        raise CheckpointError(f"{self._file.path.name}@offset {offset}: {reason}")

    def _room(self, size: int, what: str) -> None:
        """Raise an error if the next `size` bytes exceed the file or the header limit."""
        if size > self._end - self._at:
            if self._end < self._file.size:
                self._fail(f"{what} makes the header larger than {MAX_HEADER >> 20} MiB")
            self._fail(
                f"{what} ({size} bytes) goes past the end of the file, which is truncated or "
                "damaged; download it again"
            )

    def _expect(self, count: int, nbytes: int, what: str) -> None:
        """Raise an error if `count` items of at least `nbytes` each cannot follow; count them."""
        self._room(count * nbytes, f"a list of {count} {what}")
        self._items -= count
        if self._items < 0:
            self._fail(f"the header has more than {MAX_ITEMS} items")

    def _take(self, size: int) -> memoryview:
        self._room(size, "a field")
        self._at += size
        return self._bytes[self._at - size : self._at]

    def _number(self, code: Struct) -> Any:
        return code.unpack(self._take(code.size))[0]

    def _name(self, what: str, limit: int) -> str:
        at = self._at
        length = self._number(U64)
        if not 0 < length <= limit:
            self._fail(f"{what} name of {length} bytes; 1 to {limit} are allowed", at)
        try:
            return str(self._take(length), "utf-8")
        except UnicodeDecodeError:
            self._fail(f"{what} name is not UTF-8", at)

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind in SCALARS:
            return self._number(Struct("<" + SCALARS[kind]))
        if kind == STRING:
            return self._strings(1)[0]
        if kind == ARRAY:
            return self._array(depth + 1)
        self._fail(f"unknown value type {kind}", self._at - 4)

    def _array(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            self._fail(f"arrays nested more than {MAX_DEPTH} deep")
        kind, count = self._number(U32), self._number(U64)
        if kind in SCALARS:
            dtype = np.dtype("<" + SCALARS[kind])
            self._room(count * dtype.itemsize, f"an array of {count} values")
            values = np.frombuffer(self._take(count * dtype.itemsize), np.uint8)
            # GGUF allows any nonzero byte as true, numpy only 1
            array = values != 0 if kind == BOOL else values.view(dtype)
            array.flags.writeable = False
            return array
        if kind == STRING:
            return self._strings(count)
        self._expect(count, 12, "arrays")
        return [self._value(kind, depth) for _ in range(count)]

    def _strings(self, count: int) -> list[str]:
        """`count` strings; without calls per string, because vocabularies have 100 thousand."""
        self._expect(count, U64.size, "strings")
        strings = []
        data, end, at, length_at = self._bytes, self._end, self._at, U64.unpack_from
        for _ in range(count):
            start = at + U64.size
            if start > end or (stop := start + length_at(data, at)[0]) > end:
                # the checked path raises an error with the reason
                self._at = at
                self._take(self._number(U64))
            strings.append(str(data[start:stop], "utf-8", "surrogateescape"))
            at = stop
        self._at = at
        return strings

    def _tensor(self) -> tuple[int, str, tuple[int, ...], GgmlType, int]:
        """One entry of the table: its offset in the header, name, torch shape, type, data
        offset.
        """
        at = self._at
        name = self._name("tensor", MAX_NAME)
        n_dims = self._number(U32)
        if n_dims > MAX_GGML_DIMS:
            self._fail(f"tensor {name!r} has {n_dims} dimensions; ggml has {MAX_GGML_DIMS}", at)
        shape = tuple(self._number(U64) for _ in range(n_dims))[::-1]
        if fault := tensor_fault(name, shape):
            self._fail(f"tensor {name!r}: {fault}", at)
        kind = self._kind(name, shape, self._number(U32))
        return at, name, shape, kind, self._number(U64)

    def _kind(self, name: str, shape: tuple[int, ...], number: int) -> GgmlType:
        at = self._at - 4
        if number in GGML_WITHDRAWN:
            self._fail(
                f"tensor {name!r}: ggml type {GGML_WITHDRAWN[number]} was withdrawn; "
                "convert the model again",
                at,
            )
        if number not in GGML_TYPES:
            self._fail(f"tensor {name!r}: unknown ggml type {number}", at)
        kind = GGML_TYPES[number]
        row = shape[-1] if shape else 1
        if row % kind.block:
            self._fail(
                f"tensor {name!r}: rows of {row} are not a multiple of {kind.name}'s block of "
                f"{kind.block}",
                at,
            )
        return kind

    def _alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            self._fail(f"general.alignment must be a power of two, not {alignment!r}")
        return alignment

    def _locations(
        self, table: list[tuple[int, str, tuple[int, ...], GgmlType, int]], alignment: int
    ) -> dict[str, TensorLocation]:
        data = -(-self._at // alignment) * alignment
        locations: dict[str, TensorLocation] = {}
        for at, name, shape, kind, offset in table:
            nbytes = kind.row_bytes(prod(shape))
            if name in locations:
                self._fail(f"tensor {name!r} occurs twice", at)
            if offset % alignment:
                self._fail(f"tensor {name!r}: offset {offset} is not aligned to {alignment}", at)
            if data + offset + nbytes > self._file.size:
                self._fail(
                    f"tensor {name!r} ends at byte {data + offset + nbytes} of a file of "
                    f"{self._file.size}; the file is truncated; download it again",
                    at,
                )
            info = TensorInfo(
                name=name, shape=shape, format=kind.name, nbytes=nbytes, file=self._file.path.name
            )
            locations[name] = TensorLocation(info, self._file, data + offset)
        self._refuse_overlaps(locations)
        return locations

    def _refuse_overlaps(self, locations: dict[str, TensorLocation]) -> None:
        end, before = 0, ""
        for location in sorted(
            locations.values(), key=lambda location: (location.start, location.info.nbytes)
        ):
            if location.start < end:
                self._fail(f"tensors {before!r} and {location.info.name!r} overlap", location.start)
            end, before = location.start + location.info.nbytes, location.info.name
