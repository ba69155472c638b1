"""Refuses a text that exceeds a token limit without tokenizing all of it."""

from __future__ import annotations

from collections.abc import Callable

from ostro.core.errors import ContextLengthExceeded

PIECE = 1 << 18
"""Characters that are tokenized at a time while the tokens of a long text are counted."""
SHORT = 8
"""A text of at most this many characters per token of the limit is not counted beforehand."""
CUT_TOKENS = 256
"""Tokens that one cut between two pieces may add to the count."""


def check_length(text: str, limit: int, count: Callable[[str], int]) -> None:
    """Raise ContextLengthExceeded where `text` has more than `limit` tokens; a few more may pass.

    `count` gives the number of tokens of a text. The cost grows with `limit`, not with the text: a
    long text is counted piece by piece, from the front, until the limit is exceeded.
    """
    # This is for tokenizers without a longest token (`bound.py`): normalizers and pre-tokenizers
    # may drop any amount of white space, and an unknown token may stand for any number of
    # characters. The sum over pieces is never far above the count of the whole: pieces are
    # tokenized as the whole is, except next to a cut, which splits one word (WordPiece gives up
    # words beyond 100 characters) or shifts the merges of a few tokens.
    if len(text) <= max(PIECE, SHORT * limit):
        return
    allowed = limit
    tokens = 0
    for start in range(0, len(text), PIECE):
        tokens += count(text[start : start + PIECE])
        if tokens > allowed:
            raise too_long(limit)
        allowed += CUT_TOKENS


def too_long(limit: int, tokens: int | None = None) -> ContextLengthExceeded:
    """The error for a prompt of `tokens` tokens, None where they were not all counted."""
    counted = tokens is not None
    return ContextLengthExceeded.of(limit, limit + 1 if tokens is None else tokens, counted=counted)
