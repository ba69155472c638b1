"""Whisper's logits rules: suppressed tokens, and timestamps in increasing pairs.

The rules are those of transformers' WhisperTimeStampLogitsProcessor and SuppressTokens processors.
The state of a row is on the device and is updated from sampled tokens, without a host sync.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from ostro.errors import RequestError
from ostro.ops import to_device
from ostro.pipelines import AddedRequest, Vocabulary
from ostro.plugins.pipelines.transcription.request import TranscriptionRequest

BAN = float("-inf")
NONE = -1


class Rules:
    """Tables with one row per row of the sampler.

    never, never_first [rows, V]: suppressed tokens; start [rows]: the id of the timestamp 0, or V
    without timestamps; latest: the last id that may come first. The state of a row's output:
    whether it is `empty`, whether the `last` token and the one `before` are timestamps (true while
    they do not exist), and the last `time`, NONE before the first.
    """

    def __init__(self, rows: int, vocabulary: Vocabulary, device: torch.device) -> None:
        vocab = vocabulary.size
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
        """Raise RequestError for malformed parameters and for ids outside the vocabulary."""
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
            parameter = msgspec.convert(each.parameter, TranscriptionRequest)
            self.set_rules(each.row, parameter, each.output)

    def set_rules(self, row: int, request: TranscriptionRequest, output: Sequence[int]) -> None:
        """Set the rules of a row, and its state from the tokens of its `output`."""
        start = self.vocab if request.timestamps is None else request.timestamps
        without = [] if request.timestamps is None else [start - 1]  # <|notimestamps|>
        self.never[row] = bool(request.only)
        self.never[row].index_fill_(0, self.to_device(request.only), False)
        self.never[row].index_fill_(0, self.to_device([*request.banned, *without]), True)
        self.never_first[row] = False
        self.never_first[row].index_fill_(0, self.to_device(request.first), True)
        times = [token for token in output if token >= start]
        self.start[row], self.end[row] = start, request.end
        self.latest[row] = self.vocab if request.latest is None else start + request.latest
        self.fresh[row], self.empty[row] = True, not output
        self.last[row] = bool(output) and output[-1] >= start
        self.before[row] = len(output) < 2 or output[-2] >= start
        self.time[row] = times[-1] if times else NONE

    def to_device(self, ids: Sequence[int]) -> Tensor:
        return to_device(ids, torch.int64, self.device)

    def apply(self, logits: Tensor, rows: Tensor, last_ids: Tensor) -> Tensor:
        self.record_tokens(rows, last_ids)
        empty, last, before = (x[rows, None] for x in (self.empty, self.last, self.before))
        start, time = self.start[rows, None], self.time[rows, None]
        timed, is_time = start < self.vocab, self.ids >= start
        hidden = self.never[rows] | (empty & self.never_first[rows])
        hidden |= last & before & is_time
        hidden |= last & ~before & (self.ids < self.end[rows, None])
        hidden |= is_time & (self.ids < torch.where(last & ~before, time, time + 1))
        hidden |= empty & timed & (~is_time | (self.ids > self.latest[rows, None]))
        logits = logits.masked_fill(hidden, BAN)
        logprobs = logits.log_softmax(-1)
        at_any_time = logprobs.masked_fill(~is_time, BAN).logsumexp(-1, keepdim=True)
        best_word = logprobs.masked_fill(is_time, BAN).amax(-1, keepdim=True)
        return logits.masked_fill((at_any_time > best_word) & ~is_time, BAN)

    def record_tokens(self, rows: Tensor, tokens: Tensor) -> None:
        """Update the state of rows with their last tokens.

        Fresh rows are skipped: `set_rules` has counted their last token.
        """
        fresh, is_time = self.fresh[rows], tokens >= self.start[rows]
        before = self.empty[rows] | self.last[rows]
        time = torch.where(is_time, tokens, self.time[rows])
        self.before[rows] = torch.where(fresh, self.before[rows], before)
        self.last[rows] = torch.where(fresh, self.last[rows], is_time)
        self.time[rows] = torch.where(fresh, self.time[rows], time)
        self.empty[rows] &= fresh
        self.fresh[rows] = False
