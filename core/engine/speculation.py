"""Speculative decoding: a step checks proposed tokens of a sequence and keeps the right ones.

A sequence with k proposed tokens (drafts) has 1 + k decode rows in a step: its last token, then the
drafts. Each row samples with the seed and position that it would have without drafts. A draft is
accepted if it equals the token that was sampled for its place, and the row after it then counts.
The tokens are therefore the same with and without speculation, also if they are sampled: randomness
depends on seed and position alone. For drafts without probabilities this accepts as often as
rejection sampling (Leviathan et al. 2023).

The K/V of rejected drafts is overwritten: a row writes its K/V before later rows read it. Of a
recurrent state there is one after each draft, in a block of its own; the block after the last
accepted draft takes the place of the sequence's newest one.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from operator import index
from time import perf_counter
from typing import Any

from torch import Tensor

from ostro.core.engine.draft_length import MAX_DRAFTS, TYPICAL_WEIGHT, Acceptance, StepCosts
from ostro.core.engine.sampler import has_dry, has_penalties
from ostro.core.engine.sequence import Sequence
from ostro.core.messages.outputs import Stats, TokenOutput
from ostro.core.plugins.isolation import reason
from ostro.core.results import InvalidResult

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DraftRequest:
    """Asks for at most `count` tokens that may follow `tokens` (ids, the prompt included).

    `row` identifies the sequence while it runs. `started`: this is its first request.
    """

    row: int
    tokens: Rows[int]
    count: int
    started: bool


@dataclass
class ComputedRows:
    """The hidden states [n, d] of the rows of a sequence from place `start` on, drafts included.

    is_prompt: they are those of a prompt.
    """

    sequence: Sequence
    start: int
    hidden: Tensor
    is_prompt: bool


class Proposer(ABC):
    """Proposes tokens that may follow those of running sequences.

    The class that a `Speculator` record names is created with the number of rows, the most running
    sequences, and the width of the logits. It should derive from this class; one that does not gets
    the methods that it lacks. All methods run in the engine's loop between two steps. If one raises
    an exception, it is logged, and the proposer is not called again.
    """

    reads_hidden = False
    """Whether steps keep the hidden states of the model for `observe`."""

    @abstractmethod
    def propose(self, requests: Rows[DraftRequest]) -> Rows[Rows[int]]:
        """The drafts of each request, possibly none."""

    def observe(self, computed: Rows[ComputedRows]) -> None:
        """Take note of the rows of a launched step; called with `reads_hidden` alone."""
        return

    def release(self, row: int) -> None:
        """Forget the sequence of a row, which ends or is preempted."""
        return


class Speculation:
    """Proposes drafts for the decode rows of an engine, and counts the accepted ones."""

    def __init__(
        self,
        proposer: Proposer,
        rows: int,
        vocab: int,
        explain: Callable[[BaseException], str] = reason,
    ) -> None:
        """rows: the most running sequences. vocab: the width of the logits. explain: one line about
        an exception of the proposer.
        """
        self.proposer, self.vocab, self.explain = proposer, vocab, explain
        self.costs = StepCosts()
        self.typical = Acceptance(weight=TYPICAL_WEIGHT)  # with which a sequence begins
        self.acceptance = [Acceptance()] * rows
        self.sequences: list[Sequence | None] = [None] * rows
        self.asked = [False] * rows  # whether the proposer knows the sequence of a row
        self.failed = False  # the proposer raised an exception, and is not called again
        self.proposals = self.drafted = self.accepted = 0
        self.accepted_at = [0] * MAX_DRAFTS  # by place: that of the first draft of a step is 0

    def drafts(self, sequences: Rows[Sequence], rows: int, budget: int) -> list[list[int]]:
        """Drafts for sequences that each decode their last known token.

        rows: those of the step without drafts. budget: the most drafts in all.
        """
        if self.failed or not sequences or budget < 1:
            return [[] for _ in sequences]
        started = [self.begin(sequence) for sequence in sequences]
        rates = [self.acceptance[sequence.row].rate for sequence in sequences]
        limits = [
            max(min(MAX_DRAFTS, budget, each.max_length - each.length - 1), 0) for each in sequences
        ]
        if not self.costs.are_proposals_free(rows):
            limits = self.costs.choose(rates, limits, rows=rows, budget=budget)
        drafts: list[list[int]] = [[] for _ in sequences]
        asked = [place for place, limit in enumerate(limits) if limit]
        requests = list[DraftRequest]()
        for place in asked:
            sequence, row = sequences[place], sequences[place].row
            requests.append(DraftRequest(row, sequence.tokens, limits[place], started[place]))
            self.asked[row] = True
        if requests:
            for place, tokens in zip(asked, self.propose(requests), strict=True):
                drafts[place] = tokens
        # Again: a proposer may propose less than it is asked for.
        lengths = [len(tokens) for tokens in drafts]
        counts = self.costs.choose(rates, lengths, rows=rows, budget=budget, proposed=True)
        for sequence, count in zip(sequences, counts, strict=True):
            if not count:
                self.acceptance[sequence.row].decay()
        return [tokens[:count] for tokens, count in zip(drafts, counts, strict=True)]

    def begin(self, sequence: Sequence) -> bool:
        """Whether the proposer has not been asked for this sequence yet."""
        row = sequence.row
        if self.sequences[row] is not sequence:
            self.sequences[row], self.asked[row] = sequence, False
            self.acceptance[row] = Acceptance(self.typical.rate)
            # Drafts that did not pay are tried again after some sequences.
            self.typical.decay()
        return not self.asked[row]

    def observe(self, computed: Iterable[ComputedRows]) -> None:
        """Show the proposer the rows of a launched step, if it reads them."""
        if not self.proposer.reads_hidden or self.failed:
            return
        try:
            observed = list(computed)
            for rows in observed:
                self.begin(rows.sequence)
            self.proposer.observe(observed)
        except Exception as error:
            self.turn_off(error)

    def turn_off(self, error: BaseException) -> None:
        """Log the error of the proposer, which is not called any more."""
        self.failed = True
        log.error(
            "speculative decoding is off: its proposer failed: %s",
            self.explain(error),
            exc_info=error,
        )

    def propose(self, requests: Rows[DraftRequest]) -> list[list[int]]:
        """The drafts of the proposer. If it fails, it is logged, and there are none from then on:
        answers do not depend on drafts.
        """
        started = perf_counter()
        try:
            drafts = self.read_drafts(self.proposer.propose(requests), requests)
        except Exception as error:
            self.turn_off(error)
            return [[] for _ in requests]
        if most := max(map(len, drafts)):
            self.costs.add_draft((perf_counter() - started) / most)
        return drafts

    def read_drafts(self, proposed: Any, requests: Rows[DraftRequest]) -> list[list[int]]:
        """The drafts that a proposer has returned. Raises InvalidResult."""
        try:
            drafts = [
                [index(token) for token in tokens[: request.count]]
                for tokens, request in zip(proposed, requests, strict=True)
            ]
            valid = all(0 <= token < self.vocab for tokens in drafts for token in tokens)
        except (TypeError, ValueError):
            valid = False
        if not valid:
            expected = f"{len(requests)} lists of token ids within 0..{self.vocab - 1}"
            raise InvalidResult(type(self.proposer), "propose", proposed, expected)
        return drafts

    def read(
        self,
        accepted: Mapping[Sequence, int],
        outputs: Mapping[Sequence, TokenOutput],
        rows: int | None,
        seconds: float,
    ) -> None:
        """Take note of a step that was read: its accepted drafts by sequence, and its time.

        outputs: the last of each sequence. rows: its decode rows, None if it has others.
        """
        if rows is not None:
            self.costs.add(rows, seconds)
        for sequence, count in accepted.items():
            if drafted := len(sequence.drafts):
                sequence.drafts = []
                self.update(sequence, drafted, count)
                outputs[sequence].drafted, outputs[sequence].accepted = drafted, count

    def add_to(self, stats: Stats) -> None:
        """Write the counters."""
        stats.proposals, stats.drafted_tokens = self.proposals, self.drafted
        stats.accepted_tokens, stats.accepted_at = self.accepted, list(self.accepted_at)

    def update(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Take note of how many drafts of a sequence were accepted."""
        self.proposals += 1
        self.drafted += drafted
        self.accepted += accepted
        self.typical.update(drafted, accepted)
        for place in range(accepted):
            self.accepted_at[place] += 1
        if sequence.row >= 0 and self.sequences[sequence.row] is sequence:
            self.acceptance[sequence.row].update(drafted, accepted)

    def release(self, row: int) -> None:
        """Forget the sequence of a row, which ends or is preempted; -1 for one without a row."""
        if row < 0 or self.sequences[row] is None:
            return
        self.sequences[row] = None
        if self.failed:
            return
        try:
            self.proposer.release(row)
        except Exception as error:
            self.turn_off(error)


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
