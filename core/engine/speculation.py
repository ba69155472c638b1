"""Speculative decoding: a step checks proposed tokens of a sequence and keeps the right ones.

A sequence with k proposed tokens (drafts) has 1 + k decode rows in a step: its last token, then the
drafts. Each row samples with the seed and position that it would have without drafts. A draft is
accepted if it equals the token that was sampled for its place, and the row after it then counts.
The tokens are therefore the same with and without speculation, also if they are sampled: randomness
depends on seed and position alone. For drafts without probabilities this accepts as often as
rejection sampling (Leviathan et al. 2023).

The K/V of rejected drafts is overwritten: a row writes its K/V before later rows read it. Recurrent
states cannot go back, so their models are refused.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Protocol

from ostro.core.engine.sampler import has_dry, has_penalties
from ostro.core.engine.sequence import Sequence

MAX_DRAFTS = 8
"""The most drafts of one sequence in a step."""
FIRST_DRAFTS = 4
"""Drafts in the first step that has a proposal."""
ROWS = 32
"""Decode rows of a step up to which sequences get drafts: larger steps are bound by computation, so
that each further row costs time.
"""
LONGEST_PAUSE = 64
"""The most tokens without drafts after drafts that were all rejected."""


@dataclass(frozen=True)
class DraftRequest:
    """Asks for at most `count` tokens that may follow `tokens` (ids, the prompt included).

    `row` identifies the sequence while it runs. `started`: this is its first request.
    """

    row: int
    tokens: Rows[int]
    count: int
    started: bool


class Proposer(Protocol):
    """The protocol of the class that a `Speculator` record names.

    It is created with the number of rows and the width of the logits.
    """

    def __init__(self, rows: int, vocab: int) -> None: ...

    def propose(self, requests: Rows[DraftRequest]) -> Rows[Rows[int]]:
        """The drafts of each request, possibly none. Runs in the engine's loop."""


@dataclass
class DraftLength:
    """How many drafts a sequence gets, by the acceptance of its last ones.

    `pause` is the number of tokens until the next drafts, `longer` that after the next rejection.
    """

    count: int = FIRST_DRAFTS
    pause: int = 0
    longer: int = 2

    def update(self, drafted: int, accepted: int) -> None:
        """Take note of a step: all accepted doubles the drafts, none accepted pauses them."""
        if accepted == drafted:
            self.count, self.longer = min(2 * self.count, MAX_DRAFTS), 2
        elif accepted:
            self.count, self.longer = accepted + 1, 2
        else:
            self.count, self.pause = max(self.count // 2, 1), self.longer
            self.longer = min(2 * self.longer, LONGEST_PAUSE)


class Speculation:
    """Proposes drafts for the decode rows of an engine, and counts the accepted ones."""

    def __init__(self, proposer: Proposer, rows: int) -> None:
        self.proposer = proposer
        self.lengths = [DraftLength()] * rows
        self.sequences: list[Sequence | None] = [None] * rows
        self.drafted = self.accepted = 0

    def drafts(self, sequence: Sequence, count: int) -> list[int]:
        """At most `count` drafts for a sequence that decodes its last known token."""
        row = sequence.row
        started = self.sequences[row] is not sequence
        if started:
            self.sequences[row], self.lengths[row] = sequence, DraftLength()
        length = self.lengths[row]
        if length.pause:
            length.pause -= 1
            return []
        count = min(count, length.count, sequence.max_length - sequence.length - 1)
        if count < 1:
            return []
        [found] = self.proposer.propose([DraftRequest(row, sequence.tokens, count, started)])
        return list(found[:count])

    def update(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Take note of how many drafts of a sequence were accepted."""
        self.drafted += drafted
        self.accepted += accepted
        if sequence.row >= 0 and self.sequences[sequence.row] is sequence:
            self.lengths[sequence.row].update(drafted, accepted)


def may_speculate(sequence: Sequence) -> bool:
    """Whether a sequence may have drafts.

    Penalties and processors that change logits read the tokens before a row, which drafts are not
    yet; X-LoRA computes each row twice; an unread token is unknown to a proposer.
    """
    request, rules = sequence.request, sequence.request.sampling
    return (
        request.speculate
        and not sequence.pending
        and sequence.passes == 1
        and not has_penalties(rules)
        and not has_dry(rules)
        and sequence.drawn >= rules.min_tokens
        and (not rules.processors or sequence.masks_only)
    )
