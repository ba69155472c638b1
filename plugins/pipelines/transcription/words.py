"""Words of a transcript with their times, from the times of tokens.

Tokens are grouped as by openai/whisper (`tokenizer.py`, `timing.py`) and transformers
(`_combine_tokens_into_words`). Words have no punctuation around them, as in OpenAI's API.
"""

from __future__ import annotations

import string
from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence

from ostro.pipelines import Word

UNSPACED = ("zh", "ja", "th", "lo", "my", "yue")
"""Languages without spaces between words: each character is a word."""
BEFORE = "\"'“¡¿([{-"
AFTER = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001
"""Punctuation that belongs to the next word, and to the word before."""


def group_words(tokens: Sequence[tuple[bytes, float, float]], language: str) -> list[Word]:
    """The words of a text. Tokens are their bytes in UTF-8, their start and their end.

    `language` is a code, such as "en".
    """
    words = characters(tokens)
    if language not in UNSPACED:
        words = join_parts(words)
    words = join_after(join_before(words))
    for word in words:
        word.word = word.word.strip().strip(BEFORE + AFTER).strip()
    return [word for word in words if word.word]


def characters(tokens: Iterable[tuple[bytes, float, float]]) -> list[Word]:
    """Tokens as words; those of one character are joined, and an incomplete one is left out."""
    found, decoder, start = list[Word](), getincrementaldecoder("utf-8")("replace"), None
    for data, begin, end in tokens:
        start = begin if start is None else start
        text = decoder.decode(data)
        pending, _ = decoder.getstate()
        if text and not pending:
            found.append(Word(word=text, start=start, end=end))
            start = None
    return found


def join_parts(parts: Sequence[Word]) -> list[Word]:
    """Join parts of words: a word begins with a space, and punctuation is a word."""
    found = list[Word]()
    for part in parts:
        begins = part.word.startswith(" ") or part.word.strip() in string.punctuation
        if found and not begins:
            part = joined(found.pop(), part)
        found.append(part)
    return found


def join_before(words: Sequence[Word]) -> list[Word]:
    """Join the punctuation of `BEFORE` that follows a space with the next word."""
    found = list[Word]()
    for word in reversed(words):
        if found and word.word.startswith(" ") and word.word.strip() in BEFORE:
            word = joined(word, found.pop())
        found.append(word)
    return found[::-1]


def join_after(words: Sequence[Word]) -> list[Word]:
    """Join the punctuation of `AFTER` that follows a word without a space with that word."""
    found = list[Word]()
    for word in words:
        if found and word.word in AFTER and not found[-1].word.endswith(" "):
            word = joined(found.pop(), word)
        found.append(word)
    return found


def joined(first: Word, second: Word) -> Word:
    """Two words as one."""
    return Word(word=first.word + second.word, start=first.start, end=second.end)
