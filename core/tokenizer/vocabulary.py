"""The vocabulary of a model in bytes, for grammars and other masks over tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ostro.core.errors import TokenizerError
from ostro.core.tokenizer.tokenizer import Tokenizer

BEFORE = "\n"
"""A text before another one: tokenizers that write a space first write it before this."""


def encode_nothing(text: str) -> list[int]:
    """The encoder of a vocabulary without tokens."""
    raise TokenizerError("the model has no tokenizer; set --tokenizer")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of a model: what each of them writes.

    size: the width of the logits, at least the number of tokens. pieces: the bytes of each id below
    `size`, b"" for control tokens and for ids without a token; empty without a tokenizer. special:
    the ids of control tokens by their spelling. eos_ids: the ids that end an answer. encode: the
    ids of a text inside a prompt; control tokens in it are encoded as text.
    """

    size: int
    pieces: Sequence[bytes] = ()
    special: Mapping[str, int] = field(default_factory=dict)
    eos_ids: frozenset[int] = frozenset()
    encode: Callable[[str], list[int]] = encode_nothing

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, size: int, eos_ids: Iterable[int]) -> Vocabulary:
        """The vocabulary of a tokenizer, padded to `size` ids.

        Raises TokenizerError for a decoder that combines tokens (WordPiece's): its tokens have no
        bytes of their own.
        """
        if not tokenizer.has_pieces:
            raise TokenizerError(
                f"{tokenizer.source}: its decoder ({tokenizer.decoder}) combines tokens, so that a "
                "token has no bytes of its own; byte-level and SentencePiece decoders are supported"
            )
        control = tokenizer.control_ids
        known = range(min(size, tokenizer.vocab_size))
        pieces = [b"" if id in control else tokenizer.piece(id) for id in known]
        pieces += [b""] * (size - len(pieces))
        special = {tokenizer.token(id): id for id in sorted(control) if id < size}
        ends = frozenset(id for id in eos_ids if 0 <= id < size)
        encode = partial(encode_inside, tokenizer)
        return cls(size, tuple(pieces), special, ends, encode)


def encode_inside(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text after other text: without a space that the text does not begin with."""
    ids = tokenizer.encode(text, special=False, start=False)
    if not text or b"".join(map(tokenizer.piece, ids)) == text.encode():
        return ids
    before = tokenizer.encode(BEFORE, special=False, start=False)
    whole = tokenizer.encode(BEFORE + text, special=False, start=False)
    return whole[len(before) :] if whole[: len(before)] == before else ids
