"""Checks the text of a JSON body before it is decoded: numbers of values, depth, and names."""

from __future__ import annotations

import msgspec

from ostro.core.errors import RequestError

MAX_DEPTH = 64
MAX_NODES = 200_000
"""Members, arrays and objects of a JSON body: several times what 10,000 messages need."""
MAX_ITEMS = 1 << 20
"""Items of all arrays and objects of a JSON body: a context of a million token ids."""
MAX_MEMBERS = 16 << 10
"""Members of one object: several times what options and JSON schemas need."""
MAX_NAME = 64 << 10
"""Limit on the bytes of a member's name."""
PIECE = 64 << 10
"""Bytes that are scanned at a time."""
NUL = rb"\u0000"
COLON, OPENING = ord(":"), b"{["
OTHERS = bytes(set(range(256)) - set(b"{}[]:"))
"""All bytes but those that open and close arrays and objects and end the names of members."""
COLONS, SEPARATORS = frozenset((b":", b": ")), frozenset((b"", b",", b", "))
"""Usual texts between strings, which need no `translate`."""


def check_text(data: bytes | bytearray) -> set[bytes]:
    """Return the names of the members of the outermost object.

    Raises RequestError for a JSON text that is costly to decode or ambiguous: with more values than
    `MAX_NODES`, `MAX_ITEMS` and `MAX_MEMBERS`, nested deeper than `MAX_DEPTH`, with two members of
    one name in an object (decoders keep the last), or with the character U+0000. The errors of
    malformed JSON are left to the decoder.

    A decoder holds the GIL for longer the more values there are. This function goes through the
    text piece by piece, so that other threads run meanwhile.
    """
    if b"\\" in data and NUL in data and NUL in data.replace(rb"\\", b""):
        raise RequestError("a text contains the character U+0000")
    scanner, view, start = JsonScanner(), memoryview(data), 0
    while start < len(data):
        piece = bytes(view[start : start + PIECE])
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = bytes(view[start : start + PIECE + 1])  # with the character that is escaped
        start += len(piece)
        scanner.add(piece)
    return scanner.first


class JsonScanner:
    """Follows the structure of a JSON text, which it receives in pieces.

    first: the names of the members of the first object. names: those of each object that is open,
    in its order of nesting; an array has an empty set. last: the string that ended last.
    unfinished: the begin of one that has not ended.
    """

    def __init__(self) -> None:
        self.first: set[bytes] = set()
        self.names: list[set[bytes]] = []
        self.last = b""
        self.unfinished: bytes | None = None
        self.nodes = self.items = 0

    def add(self, piece: bytes) -> None:
        """Scan the next piece, which does not end within an escape. Raises RequestError."""
        parts = piece.replace(rb"\\", rb"\u005c").replace(rb"\"", rb"\u0022").split(b'"')
        if self.unfinished is not None:
            parts[:1] = [b"", (self.unfinished + parts[0])[: MAX_NAME + 1]]
        self.unfinished = None if len(parts) % 2 else parts.pop()
        texts, outside = [self.last, *parts[1::2]], parts[::2]
        self.last = texts[-1]
        self.count(b"".join(outside))
        for text, after in zip(texts, outside, strict=True):
            if after in COLONS:
                self.add_name(text)
            elif after not in SEPARATORS:
                self.follow(text, after.translate(None, OTHERS))

    def count(self, outside: bytes) -> None:
        """Count the values in a text without strings. Raises RequestError for too many."""
        self.nodes += sum(map(outside.count, (b":", b"[", b"{")))
        self.items += outside.count(b",")
        if self.nodes > MAX_NODES or self.items > MAX_ITEMS:
            raise RequestError(
                f"the body has more than {MAX_NODES} members, arrays and objects, or more than "
                f"{MAX_ITEMS} items"
            )

    def follow(self, text: bytes, marks: bytes) -> None:
        """Add a name, and open and close arrays and objects. Raises RequestError."""
        for mark in marks:
            if mark == COLON:
                self.add_name(text)
            elif mark in OPENING:
                self.names.append(set() if self.names else self.first)
                if len(self.names) > MAX_DEPTH:
                    raise RequestError(f"the body is nested deeper than {MAX_DEPTH} levels")
            elif self.names:
                self.names.pop()

    def add_name(self, name: bytes) -> None:
        """Add a name to those of its object. Raises RequestError for the second of one name."""
        if len(name) > MAX_NAME:
            raise RequestError(f"a member's name exceeds {MAX_NAME} bytes")
        if b"\\" in name:
            name = unescape(name)
        if self.names and name in self.names[-1]:
            shown = name.decode(errors="replace")
            raise RequestError(f"the body has two members named {shown!r:.80} in one object")
        if self.names:
            self.names[-1].add(name)
            if len(self.names[-1]) > MAX_MEMBERS:
                raise RequestError(f"the body has an object of more than {MAX_MEMBERS} members")


def unescape(text: bytes) -> bytes:
    """Return a string of JSON in UTF-8, unchanged if it is malformed."""
    try:
        return msgspec.json.decode(b'"%s"' % text, type=str).encode()
    except ValueError:
        return text
