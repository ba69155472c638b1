"""The result of one audio window, and its segmentation by timestamps."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

STEPS = 50
"""Timestamps per second; each is one row of the encoder, two frames of the spectrogram."""


@dataclass(frozen=True, kw_only=True)
class WindowResult:
    """The sampled tokens of one window, without the end token.

    `context` precedes the tokens; `ended`: the end token followed them. `logprobs` are those of the
    tokens, `logprob` is the mean over the tokens and the end, `silence` the probability of no
    speech. `times` are the start and end of each token in seconds from the start of the window, if
    requested.
    """

    context: list[int]
    tokens: list[int]
    ended: bool
    logprobs: list[float]
    text: str
    logprob: float
    temperature: float
    silence: float
    times: Sequence[tuple[float, float]] = ()

    @property
    def ratio(self) -> float:
        """The compression ratio of the text; high for repetitive text."""
        data = self.text.encode()
        return len(data) / len(zlib.compress(data))


@dataclass(frozen=True)
class TokenSegment:
    """Tokens between two timestamps, in steps from the start of the window."""

    start: int
    end: int
    tokens: list[int]


def cut(tokens: Sequence[int], times: int, frames: int) -> tuple[list[TokenSegment], int]:
    """Split the tokens of a window of `frames` frames; also return the frames that are done.

    Segments end at two consecutive timestamps. The next window repeats the audio after the last
    such pair, unless the tokens end with a single timestamp. Without a pair all tokens are one
    segment. The rules are those of WhisperGenerationMixin's `_retrieve_segment`.
    """
    is_time = [token >= times for token in tokens]
    ends = [i + 1 for i, pair in enumerate(pairwise(is_time)) if all(pair)]
    complete = is_time[-2:] == [False, True]
    if not ends:
        found = [token - times for token in tokens if token >= times]
        last = found[-1] if found and found[-1] else frames // 2
        return [TokenSegment(0, last, list(tokens))], frames
    if complete:
        ends.append(len(tokens))
    else:
        ends[-1] += 1
    pieces = []
    for start, stop in pairwise((0, *ends)):
        part = list(tokens[start:stop])
        doubled = stop == ends[-1] and not complete
        pieces.append(TokenSegment(part[0] - times, part[-2 if doubled else -1] - times, part))
    return pieces, frames if complete else 2 * (tokens[ends[-1] - 2] - times) or frames


def prompt_tokens(pieces: Sequence[Sequence[int]], times: int, limit: int) -> list[int]:
    """The last `limit` tokens of earlier segments, which precede the next window.

    Of two timestamps at a segment's end the second is omitted: the next segment begins with it.
    """
    out = list[int]()
    for tokens in pieces:
        doubled = len(tokens) > 2 and tokens[-2] >= times
        out += tokens[:-1] if doubled else tokens
    return out[-limit:]
