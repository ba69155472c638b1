"""Multi-token heads: the head of a checkpoint (MTP) proposes its most likely tokens.

The head has rows like those of the model: the row of a token reads its hidden states in the model,
and the token after it. The K/V of both is in the same blocks, so that a cached prefix has that of
the head as well. Rows of prompts are computed in the next step, others with the next proposal, so
that answers without drafts do without the head. After `HELD` such rows a sequence gets no drafts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from ostro.core.engine.layout import flat_positions, paged_metadata
from ostro.core.engine.location import runs_model
from ostro.core.engine.runner import ModelRunner
from ostro.core.engine.scheduler import Chunk
from ostro.core.engine.sequence import Sequence as TokenSequence
from ostro.core.engine.speculation import ComputedRows, DraftRequest, Proposer
from ostro.core.failure import is_out_of_memory, ordinary_errors
from ostro.core.nn import CachedLayer, MultiTokenHead
from ostro.core.step import Step

log = logging.getLogger(__name__)

HELD = 64
"""The most rows of an answer whose hidden states are kept for the head."""


@dataclass
class HeadSequence:
    """A sequence, and what the head needs of it.

    held: hidden states [n, d] of the model's rows from place `start` on, which the head has not
    computed. state: those [1, d] of its last computed row, the one before `start`. has_prompt: rows
    of a prompt are held. drafted: it got drafts. lost: rows that were held have been dropped.
    """

    sequence: TokenSequence
    start: int
    held: list[Tensor] = field(default_factory=list)
    state: Tensor | None = None
    has_prompt: bool = False
    drafted: bool = False
    lost: bool = False

    @property
    def count(self) -> int:
        """The number of held rows."""
        return sum(map(len, self.held))

    def hold(self, start: int, hidden: Tensor, is_prompt: bool) -> None:
        """Keep the hidden states of the model's rows from `start` on, those of drafts included."""
        if self.lost:
            return
        # Of the rows before, those of rejected drafts are computed again.
        self.cut(start)
        self.held.append(hidden)
        self.has_prompt = is_prompt
        if not is_prompt and self.count > HELD:
            self.lose()

    def lose(self) -> None:
        """Drop all rows: the sequence gets no more drafts."""
        self.lost, self.held, self.state = True, [], None
        self.has_prompt = self.drafted = False

    def cut(self, stop: int) -> None:
        """Drop the held rows from place `stop` on."""
        over = self.start + self.count - stop
        while over > 0:
            last = self.held.pop()
            if len(last) > over:
                self.held.append(last[:-over])
            over -= len(last)


class MultiTokenProposer(Proposer):
    """The `Proposer` of a multi-token head."""

    reads_hidden = True

    def __init__(self, runner: ModelRunner, head: MultiTokenHead, rows: int) -> None:
        """rows: the most running sequences."""
        self.runner, self.model, self.device = runner, runner.model, runner.device
        self.head, self.sequences = head, list[HeadSequence | None]([None] * rows)
        self.layers = {m.layer for m in head.modules() if isinstance(m, CachedLayer)}
        groups = enumerate(runner.blocks.groups)
        self.groups = [i for i, group in groups if self.layers & {*group.layers}]

    @ordinary_errors()
    @runs_model
    @torch.inference_mode()
    def observe(self, computed: Sequence[ComputedRows]) -> None:
        """Keep the hidden states of a launched step."""
        if not computed:
            return
        # The tokens after the rows of prompts are known by now, unless a sequence draws late.
        prompts = [s for s in self.sequences if s is not None and s.has_prompt]
        self.compute(s for s in prompts if len(s.sequence.tokens) > s.start + s.count)
        for rows in computed:
            row = rows.sequence.row
            own = self.sequences[row]
            if own is None:
                own = self.sequences[row] = HeadSequence(rows.sequence, rows.start)
            own.hold(rows.start, rows.hidden, rows.is_prompt)

    @ordinary_errors()
    @runs_model
    @torch.inference_mode()
    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """See `Proposer`. Sequences get fewer drafts where the cache has no room for them."""
        asked = [self.sequences[request.row] for request in requests]
        self.compute(sequence for sequence in asked if sequence is not None)
        drafts: list[list[int]] = [[] for _ in requests]
        live, states = dict[int, TokenSequence](), list[Tensor]()
        for i, own in enumerate(asked):
            if own is not None and own.state is not None:
                own.drafted, live[i] = True, own.sequence
                states.append(own.state)
        if not live:
            return drafts
        proposed, owners, hidden = list[Tensor](), list[int](), torch.cat(states)
        while live:
            tokens = self.head.logits(self.model, hidden).argmax(-1)
            proposed.append(tokens)
            owners += live
            hidden = self.extend(requests, live, len(proposed), tokens, hidden)
        for owner, token in zip(owners, torch.cat(proposed).tolist(), strict=True):
            drafts[owner].append(token)
        return drafts

    @ordinary_errors()
    @runs_model
    @torch.inference_mode()
    def release(self, row: int) -> None:
        """Forget the sequence of a row. Its blocks stay in the prefix cache: if it had drafts, or
        rows of its prompt are held, they get their K/V.
        """
        own, self.sequences[row] = self.sequences[row], None
        # One that no longer has its row has lost its blocks.
        if own is not None and own.sequence.row >= 0 and (own.has_prompt or own.drafted):
            self.compute([own])

    def compute(self, sequences: Iterable[HeadSequence]) -> None:
        """Compute the held rows of these sequences whose next tokens are known."""
        chunks, tokens, hidden, computed = list[Chunk](), list[int](), list[Tensor](), []
        for own in sequences:
            sequence = own.sequence
            own.cut(len(sequence.tokens) - 1)
            if count := own.count:
                chunks.append(Chunk(sequence, own.start, count, draws=False))
                own.start += count
                tokens += sequence.tokens[own.start - count + 1 : own.start + 1]
                hidden += own.held
                computed.append(own)
            own.held, own.has_prompt = [], False
        if not chunks:
            return
        try:
            states = self.run(chunks, self.runner.int64(tokens), torch.cat(hidden))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            log.warning("a multi-token head ran out of memory: running requests get no drafts")
            for own in filter(None, self.sequences):
                own.lose()
            return
        ends = accumulate(chunk.count for chunk in chunks)
        for own, end in zip(computed, ends, strict=True):
            own.state = states[end - 1 : end]

    def extend(
        self,
        requests: Sequence[DraftRequest],
        live: dict[int, TokenSequence],
        drafted: int,
        tokens: Tensor,
        hidden: Tensor,
    ) -> Tensor:
        """The hidden states [n, d] of the last of `drafted` drafts, in the order of `live`.

        live: the sequences of requests, those of `tokens` and `hidden`. Those that have all their
        drafts, or no room for more, are removed.
        """
        kept, chunks = list[int](), list[Chunk]()
        for row, (i, sequence) in enumerate(list(live.items())):
            start = len(requests[i].tokens) - 2 + drafted
            is_full = drafted == requests[i].count
            if is_full or not self.runner.blocks.grow_pages(sequence.tables, start + 1):
                del live[i]
                continue
            kept.append(row)
            chunks.append(Chunk(sequence, start, 1, draws=False))
        if not chunks:
            return hidden[:0]
        if len(kept) < len(tokens):
            rows = self.runner.int64(kept)
            tokens, hidden = tokens[rows], hidden[rows]
        return self.run(chunks, tokens, hidden)

    def run(self, chunks: Sequence[Chunk], tokens: Tensor, hidden: Tensor) -> Tensor:
        """The head's hidden states [T, d] of the rows of these chunks, which read the next tokens
        [T] and the hidden states [T, d].
        """
        blocks, views = self.runner.blocks, list[object]([None] * self.runner.layers)
        for index in self.groups:
            group = blocks.groups[index]
            batch = paged_metadata(group, index, chunks, blocks.block, group.kind.device)
            for i, layer in enumerate(group.layers):
                if layer in self.layers:
                    views[layer] = group.kind.view(i, batch)
        positions = self.runner.int64(flat_positions(chunks, self.model.axes))
        step = Step(tokens, positions.view(self.model.axes, -1), caches=views)
        states: Tensor = self.head(self.model.embed(step), hidden, step)
        return states
