"""Incremental detokenization: complete characters only."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import tokenizers
from tokenizers.decoders import DecodeStream

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """The byte of each character of byte-level BPE (the inverse of GPT-2's `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    characters = {chr(byte): byte for byte in printable}
    return characters | {chr(256 + i): byte for i, byte in enumerate(hidden)}


ALPHABET = byte_alphabet()


class Spelling:
    """The bytes of each token, for decoders that decode every token alone.

    leading_space: the decoder removes one space at the start of a text.
    """

    def __init__(self, spell: Callable[[str], bytes], leading_space: bool) -> None:
        self.spell = spell
        self.leading_space = leading_space

    @classmethod
    def find(cls, backend: tokenizers.Tokenizer) -> Spelling | None:
        """Read the backend's decoder; None unless it is byte-level or SentencePiece's."""
        if backend.decoder is None:
            return None
        state = json.loads(backend.decoder.__getstate__())
        steps = state["decoders"] if state["type"] == "Sequence" else [state]
        kinds = [step["type"] for step in steps]
        if "ByteLevel" in kinds and set(kinds) <= {"ByteLevel", "Fuse"}:
            return cls(_spell_byte_level, False)
        if kinds == ["Metaspace"]:
            space, scheme = steps[0]["replacement"], steps[0].get("prepend_scheme", "always")
            return cls(lambda token: token.replace(space, " ").encode(), scheme != "never")
        if set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
            return cls._from_steps(steps)
        return None

    @classmethod
    def _from_steps(cls, steps: list[dict[str, Any]]) -> Spelling | None:
        replacements: list[tuple[str, str]] = []
        byte_tokens = strip = False
        for step in steps:
            if step["type"] == "Replace":
                if "String" not in step["pattern"]:
                    return None
                replacements.append((step["pattern"]["String"], step["content"]))
            elif step["type"] == "ByteFallback":
                byte_tokens = True
            elif step["type"] == "Strip":
                if (step["content"], step["start"], step["stop"]) != (" ", 1, 0):
                    return None
                strip = True

        def spell(token: str) -> bytes:
            if byte_tokens and (match := BYTE_TOKEN.fullmatch(token)):
                return bytes([int(match[1], 16)])
            for old, new in replacements:
                token = token.replace(old, new)
            return token.encode()

        return cls(spell, strip)


def _spell_byte_level(token: str) -> bytes:
    try:
        return bytes(ALPHABET[letter] for letter in token)
    except KeyError:
        return token.encode()


def token_name(piece: bytes) -> str:
    """The text of a token's bytes; a part of a character has OpenAI's form "bytes:\\xf0\\x9f"."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        shown = (chr(b) if 0x20 <= b < 0x7F and b != 0x5C else f"\\x{b:02x}" for b in piece)
        return "bytes:" + "".join(shown)


class Detokenizer:
    """Converts a stream of ids to text, in constant time per token.

    The bytes of an incomplete character are held back; invalid bytes become U+FFFD. The joined
    pieces equal `Tokenizer.decode` of all ids.
    """

    def __init__(
        self, piece: Callable[[int], bytes], skip: frozenset[int], strip_space: bool
    ) -> None:
        self._piece = piece
        self._skip = skip
        self._strip = strip_space
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, ids: Iterable[int]) -> str:
        """Add ids and return the text that is complete now, possibly ""."""
        decode, piece, skip = self._utf8.decode, self._piece, self._skip
        text = "".join([decode(piece(id)) for id in ids if id not in skip])
        return self._begin(text) if self._strip else text

    def flush(self) -> str:
        """Return the text held back; bytes of an incomplete character become U+FFFD."""
        return self._begin(self._utf8.decode(b"", final=True))

    def finish(self) -> str:
        """Return the text held back. Nothing may be added afterwards."""
        return self.flush()

    def _begin(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            text = text.removeprefix(" ")
        return text


class WindowDetokenizer(Detokenizer):
    """A Detokenizer for decoders that combine tokens, such as WordPiece's: a sliding window."""

    def __init__(self, backend: tokenizers.Tokenizer, skip_special: bool) -> None:
        self._backend = backend
        self._skip_special = skip_special
        self._stream = DecodeStream(skip_special_tokens=skip_special)
        self._ids: list[int] = []
        self._shown = 0

    def add(self, ids: Iterable[int]) -> str:
        """Add ids and return the text that is complete now."""
        pieces = []
        for id in ids:
            self._ids.append(id)
            pieces.append(self._stream.step(self._backend, id) or "")
        text = "".join(pieces)
        self._shown += len(text)
        return text

    def flush(self) -> str:
        """Return nothing: the window decides when its text is complete."""
        return ""

    def finish(self) -> str:
        """Return the text held back. Nothing may be added afterwards."""
        whole = self._backend.decode(self._ids, skip_special_tokens=self._skip_special)
        return whole[self._shown :]
