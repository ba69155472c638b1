"""The logits processor: once the budget is spent, only the end of the reasoning is allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from ostro.errors import RequestError
from ostro.pipelines import Vocabulary

if TYPE_CHECKING:
    from ostro.pipelines import AddedRequest, MaskRequest

CONTROL = b"\xff"
"""Encloses the spelling of a control token. UTF-8 has no such byte, so that text is never one."""
FIELD = "logits_processors.reasoning_budget"
MAX_MARKER = 256
"""The most characters of a marker."""


class Parameter(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A budget in tokens, and the markers that begin and end reasoning.

    open: the prompt begins the reasoning.
    """

    tokens: int
    begin: str
    end: str
    open: bool = False


@dataclass(frozen=True)
class Budget:
    """A parameter for one vocabulary. begin, end: markers in bytes; end_ids: the end in tokens."""

    tokens: int
    begin: bytes
    end: bytes
    end_ids: Sequence[int]
    open: bool


@dataclass
class Progress:
    """How far the output of one sequence is.

    tail: the last bytes of the output, as many as a marker or a character has. ending: the tokens
    of the end that are written since the budget is spent.
    """

    budget: Budget
    inside: bool
    spent: int = 0
    tail: bytes = b""
    ending: int = 0

    def add(self, token: int, spelling: bytes) -> None:
        """Follow the output by one token."""
        budget = self.budget
        forced = self.forced()
        marker = budget.end if self.inside else budget.begin
        tail = self.tail + spelling
        at = tail.find(marker)
        if at >= 0:
            self.inside, self.ending = not self.inside, 0
            self.tail = tail[at + len(marker) :]
            return
        self.tail = tail[-max(len(marker), 3) :]
        if self.inside:
            self.spent += 1
            self.ending = self.ending + 1 if token == forced else 0

    def forced(self) -> int | None:
        """The only token that is allowed next; None if all are."""
        if not self.inside or self.spent < self.budget.tokens or is_cut(self.tail):
            return None
        return self.rest()[0]

    def rest(self) -> Sequence[int]:
        """The tokens of the end that are not written yet."""
        return self.budget.end_ids[self.ending % len(self.budget.end_ids) :]


class ReasoningBudget:
    """The budgets of one model's sequences, by row."""

    def __init__(self, rows: int, vocabulary: Vocabulary, device: torch.device) -> None:
        self.spelling = Spelling(vocabulary)
        self.progress: dict[int, Progress] = {}

    @staticmethod
    def check(parameter: Any, vocab: int) -> None:
        """Raise RequestError unless the parameter is a budget with its markers."""
        try:
            given = msgspec.convert(parameter, Parameter)
        except msgspec.ValidationError as error:
            raise RequestError(f"{FIELD}: {error}", param=FIELD) from None
        if given.tokens < 0:
            raise RequestError(f"{FIELD}: tokens={given.tokens} is negative", param=FIELD)
        for marker in (given.begin, given.end):
            if not 0 < len(marker) <= MAX_MARKER:
                raise RequestError(
                    f"{FIELD}: a marker has {len(marker)} characters; 1..{MAX_MARKER} are allowed",
                    param=FIELD,
                )

    @staticmethod
    def prepare(parameter: Any, vocabulary: Vocabulary) -> Budget:
        """The budget for a vocabulary. Raises RequestError if its tokens cannot write the end."""
        given, spelling = msgspec.convert(parameter, Parameter), Spelling(vocabulary)
        begin, _ = spelling.encode(given.begin)
        end, end_ids = spelling.encode(given.end)
        if end not in b"".join(map(spelling, end_ids)):
            raise RequestError(
                f"{FIELD}: the tokens of this model cannot write {given.end!r}", param=FIELD
            )
        return Budget(given.tokens, begin, end, end_ids, given.open)

    def update(
        self,
        added: Sequence[AddedRequest],
        removed: Sequence[int],
        moved: Sequence[tuple[int, int]],
    ) -> None:
        """Forget removed rows, and follow the output so far of added ones."""
        for row in removed:
            self.progress.pop(row, None)
        held = {target: self.progress.pop(source) for source, target in moved}
        self.progress |= held
        for request in added:
            budget: Budget = request.prepared
            progress = self.progress[request.row] = Progress(budget, budget.open)
            self.follow(progress, request.output)

    def fill(self, requests: Sequence[MaskRequest], masks: Tensor) -> Mapping[int, Exception]:
        """Write the masks of sequences whose budget is spent.

        masks [n, ceil(size / 32)] int32 on the host; request k owns 1 + len(drafts) rows, in the
        order of `requests`: before each draft and after the last.
        """
        row = 0
        for request in requests:
            progress = self.progress[request.row]
            self.follow(progress, request.tokens)
            progress = copy(progress)  # drafts may be rejected
            for draft in (*request.drafts, None):
                if (token := progress.forced()) is not None:
                    allow_only(token, masks[row])
                if draft is not None:
                    self.follow(progress, [draft])
                row += 1
        return {}

    def forced(self, request: MaskRequest) -> list[int] | None:
        """The rest of the end of the reasoning if the budget is spent."""
        progress = self.progress[request.row]
        self.follow(progress, request.tokens)
        return None if progress.forced() is None else list(progress.rest())

    def follow(self, progress: Progress, tokens: Sequence[int]) -> None:
        """Follow an output by some tokens."""
        for token in tokens:
            progress.add(token, self.spelling(token))


class Spelling:
    """The bytes of tokens, those of control tokens enclosed in `CONTROL`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.controls = {
            id: CONTROL + text.encode() + CONTROL for text, id in vocabulary.special.items()
        }

    def __call__(self, token: int) -> bytes:
        return self.controls.get(token) or self.vocabulary.pieces[token]

    def encode(self, marker: str) -> tuple[bytes, list[int]]:
        """The bytes and the tokens of a marker, which may contain control tokens."""
        special, data, ids = self.vocabulary.special, b"", list[int]()
        names = sorted(filter(None, special), key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, names))})", marker) if names else [marker]
        for part in filter(None, parts):
            if part in special:
                data, ids = data + self.controls[special[part]], [*ids, special[part]]
            else:
                data, ids = data + part.encode(), [*ids, *self.vocabulary.encode(part)]
        return data, ids


def is_cut(data: bytes) -> bool:
    """Whether bytes end within a character: a grammar allows only its rest."""
    for size in range(1, min(4, len(data) + 1)):
        if (byte := data[-size]) & 0xC0 != 0x80:  # the first byte of a character
            return size < (byte >= 0xC2) + (byte >= 0xE0) + (byte >= 0xF0) + 1 and byte <= 0xF4
    return False


def allow_only(token: int, mask: Tensor) -> None:
    """Clear all bits of a mask [ceil(size / 32)] int32 but that of a token."""
    bit = 1 << token % 32
    mask.zero_()
    mask[token // 32] = bit - (1 << 32) if bit >> 31 else bit
