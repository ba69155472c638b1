"""Whisper's rules of writing: what is never said, and times in pairs that never go back.

As transformers' WhisperTimeStampLogitsProcessor and SuppressTokens processors have it. All of it
happens on the device: a row's state follows from the tokens it draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from ostro.errors import RequestError
from ostro.ops import to_device
from ostro.pipelines import AddedRequest
from ostro.plugins.pipelines.transcription.request import TranscriptionRequest

BAN = float("-inf")
NONE = -1


class Rules:
    """One row of every table per row of the sampler.

    never, never_first [rows, V]: what may not be drawn; start [rows]: the id of the time 0, V where
    there are no times; latest: the last id that may come first. Of what a row has said: whether it
    is `empty`, whether its last token and the one before were times (both count as times before
    they exist), and the last `time`, NONE before the first.
    """

    def __init__(self, rows: int, vocab: int, device: torch.device) -> None:
        self.vocab, self.device = vocab, device
        self.never = torch.zeros(rows, vocab, dtype=torch.bool, device=device)
        self.never_first = torch.zeros_like(self.never)
        self.start, self.latest, self.end = (
            torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(3)
        )
        self.fresh, self.empty, self.last, self.before = (
            torch.zeros(rows, dtype=torch.bool, device=device) for _ in range(4)
        )
        self.time = torch.zeros(rows, dtype=torch.int64, device=device)
        self.ids = torch.arange(vocab, device=device)

    @staticmethod
    def check(parameter: Any, vocab: int) -> None:
        """Raise RequestError unless these are rules of a vocabulary of so many tokens."""
        try:
            rules = msgspec.convert(parameter, TranscriptionRequest)
        except msgspec.ValidationError as error:
            raise RequestError(f"transcription: {error}", param="transcription") from None
        ids = [*rules.banned, *rules.first, *rules.only, rules.timestamps or 0, rules.end]
        if not 0 <= min(ids) <= max(ids) < vocab:
            raise RequestError(
                f"transcription: {min(ids)}..{max(ids)} are not within 0..{vocab - 1}",
                param="transcription",
            )

    def update(
        self,
        added: Sequence[AddedRequest],
        removed: Sequence[int],
        moved: Sequence[tuple[int, int]],
    ) -> None:
        for each in added:
            self.place(each.row, msgspec.convert(each.parameter, TranscriptionRequest), each.output)

    def place(self, row: int, asked: TranscriptionRequest, said: Sequence[int]) -> None:
        """Write down the rules of a row, and what follows from what it has said."""
        start = self.vocab if asked.timestamps is None else asked.timestamps
        without = [] if asked.timestamps is None else [start - 1]  # <|notimestamps|>
        self.never[row] = bool(asked.only)
        self.never[row].index_fill_(0, self.send(asked.only), False)
        self.never[row].index_fill_(0, self.send([*asked.banned, *without]), True)
        self.never_first[row] = False
        self.never_first[row].index_fill_(0, self.send(asked.first), True)
        times = [token for token in said if token >= start]
        self.start[row], self.end[row] = start, asked.end
        self.latest[row] = self.vocab if asked.latest is None else start + asked.latest
        self.fresh[row], self.empty[row] = True, not said
        self.last[row] = bool(said) and said[-1] >= start
        self.before[row] = len(said) < 2 or said[-2] >= start
        self.time[row] = times[-1] if times else NONE

    def send(self, ids: Sequence[int]) -> Tensor:
        return to_device(ids, torch.int64, self.device)

    def apply(self, logits: Tensor, rows: Tensor, last_ids: Tensor) -> Tensor:
        self.hear(rows, last_ids)
        empty, last, before = (x[rows, None] for x in (self.empty, self.last, self.before))
        start, time = self.start[rows, None], self.time[rows, None]
        timed, is_time = start < self.vocab, self.ids >= start
        hidden = self.never[rows] | (empty & self.never_first[rows])
        hidden |= last & before & is_time
        hidden |= last & ~before & (self.ids < self.end[rows, None])
        hidden |= is_time & (self.ids < torch.where(last & ~before, time, time + 1))
        hidden |= empty & timed & (~is_time | (self.ids > self.latest[rows, None]))
        logits = logits.masked_fill(hidden, BAN)
        shares = logits.log_softmax(-1)
        at_any_time = shares.masked_fill(~is_time, BAN).logsumexp(-1, keepdim=True)
        best_word = shares.masked_fill(is_time, BAN).amax(-1, keepdim=True)
        return logits.masked_fill((at_any_time > best_word) & ~is_time, BAN)

    def hear(self, rows: Tensor, tokens: Tensor) -> None:
        """Take note of what rows have drawn; fresh ones have been told."""
        fresh, is_time = self.fresh[rows], tokens >= self.start[rows]
        before = self.empty[rows] | self.last[rows]
        time = torch.where(is_time, tokens, self.time[rows])
        self.before[rows] = torch.where(fresh, self.before[rows], before)
        self.last[rows] = torch.where(fresh, self.last[rows], is_time)
        self.time[rows] = torch.where(fresh, self.time[rows], time)
        self.empty[rows] &= fresh
        self.fresh[rows] = False
