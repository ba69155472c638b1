"""Vocabularies of pieces with scores, of SentencePiece models and GGUF files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from ostro.errors import TokenizerError

LONGEST = 1024
"""Limit on the length of a piece in characters, since each cut of it is tried as a merge."""

SPACE = "\u2581"
"""SentencePiece's character for a space."""


class Kind(IntEnum):
    """Kinds of pieces, with the numbers of SentencePiece and GGUF."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """A vocabulary: token texts by id, with their scores and kinds."""

    texts: Sequence[str]
    scores: Sequence[float]
    kinds: Sequence[int]
    source: str

    def __post_init__(self) -> None:
        if not len(self.texts) == len(self.scores) == len(self.kinds):
            raise TokenizerError(
                f"{self.source}: {len(self.texts)} tokens, {len(self.scores)} scores and "
                f"{len(self.kinds)} token types; the numbers must be equal"
            )
        wrong = next((text for text in self.texts if not isinstance(text, str)), None)
        if wrong is not None:
            raise TokenizerError(f"{self.source}: token {wrong!r:.40} is not a string")
        if len(longest := max(self.texts, key=len, default="")) > LONGEST:
            raise TokenizerError(
                f"{self.source}: a token has {len(longest)} characters; the limit is {LONGEST}"
            )
        self.ids()

    def ids(self) -> dict[str, int]:
        """Ids by text. Raises TokenizerError for duplicate texts."""
        ids = {text: id for id, text in enumerate(self.texts)}
        if len(ids) < len(self.texts):
            id, text = next((i, text) for i, text in enumerate(self.texts) if ids[text] != i)
            raise TokenizerError(f"{self.source}: token {text!r} has two ids, {id} and {ids[text]}")
        return ids

    def merges(self) -> list[tuple[str, str]]:
        """The merges of SentencePiece's BPE, best score first."""
        ids = {
            text: id
            for id, text in enumerate(self.texts)
            if self.kinds[id] in (Kind.NORMAL, Kind.USER_DEFINED, Kind.UNUSED)
        }
        order = sorted(
            (id for id in ids.values() if self.kinds[id] == Kind.NORMAL),
            key=lambda id: (-self.scores[id], id),
        )
        return [
            (text[:cut], text[cut:])
            for text in (self.texts[id] for id in order)
            for cut in range(1, len(text))
            if text[:cut] in ids and text[cut:] in ids
        ]

    def added(
        self, *, keep_space: Collection[str] | None = None, normalized: bool = False
    ) -> list[AddedToken]:
        """The tokens that are matched before all others: control and user-defined tokens.

        If `keep_space` is given, tokens strip the space after them, except those in `keep_space`.
        """
        tokens = []
        for text, kind in zip(self.texts, self.kinds, strict=True):
            control = kind in (Kind.CONTROL, Kind.UNKNOWN)
            if control or kind == Kind.USER_DEFINED:
                inside = normalized and not control
                rstrip = keep_space is not None and text not in keep_space
                tokens.append(AddedToken(text, special=control, normalized=inside, rstrip=rstrip))
        return tokens

    def token(self, id: int | None) -> str | None:
        """The text of an id, None for None. Raises TokenizerError beyond the vocabulary."""
        if id is None or id < 0:
            return None
        if id >= len(self.texts):
            raise TokenizerError(
                f"{self.source}: special token id {id} exceeds the vocabulary of {len(self.texts)}"
            )
        return self.texts[id]


def build_bpe(pieces: Pieces, *, unk: str | None, prefix: str) -> tokenizers.Tokenizer:
    """Build SentencePiece's BPE: merges by score, unknown characters as bytes.

    `prefix` selects the texts that get a leading space: "always" (every text between control
    tokens), "first" (the first text only) or "never".
    """
    ids = pieces.ids()
    model = models.BPE(ids, pieces.merges(), unk_token=unk, fuse_unk=True)
    model.byte_fallback = all(f"<0x{byte:02X}>" in ids for byte in range(256))
    backend = tokenizers.Tokenizer(model)
    if prefix == "first":
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        steps = [normalizers.Prepend(SPACE)] if prefix == "always" else []
        backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    undo = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    strip = [decoders.Strip(" ", 1, 0)] * (prefix != "never")
    backend.decoder = decoders.Sequence([*undo, *strip])
    return backend


def build_unigram(
    pieces: Pieces, *, unk: int | None, charsmap: bytes, prefix: bool, collapse: bool
) -> tokenizers.Tokenizer:
    """Build SentencePiece's unigram model; `charsmap` is its compiled normalisation."""
    byte_fallback = Kind.BYTE in pieces.kinds
    scored = list(zip(pieces.texts, map(float, pieces.scores), strict=True))
    backend = tokenizers.Tokenizer(models.Unigram(scored, unk, byte_fallback))
    steps: list[Any] = [normalizers.Precompiled(charsmap)] if charsmap else []
    if collapse:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    steps += [normalizers.Prepend(SPACE)] * prefix
    backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    space = decoders.Replace(SPACE, " ")
    undo = [decoders.ByteFallback(), decoders.Fuse()] if byte_fallback else [decoders.Fuse()]
    backend.decoder = decoders.Sequence([space, *undo] + [decoders.Strip(" ", 1, 0)] * prefix)
    return backend
