"""A draft model: a smaller model of the same vocabulary proposes its most likely tokens.

It has a runner and a cache of its own, in the memory that is planned for both models. All sequences
draft in the same steps. A sequence keeps the cache of the tokens that both models agree on, so that
a proposal of k tokens takes k small steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ostro.core.engine.blocks import BlockManager
from ostro.core.engine.runner import ModelRunner
from ostro.core.engine.scheduler import Chunk, StepPlan
from ostro.core.engine.sequence import Sequence as TokenSequence
from ostro.core.engine.speculation import DraftRequest, Proposer
from ostro.core.engine.standalone import standalone_sequence
from ostro.core.errors import UsageError
from ostro.core.settings import Settings
from ostro.core.tokenizer.vocabulary import Vocabulary

FIELDS = (
    *("device", "threads", "max_seqs", "offline", "token_source", "allow_config"),
    *("deterministic", "exact", "replay"),
)
"""Settings of a model that its draft model shares."""


@dataclass
class DraftSequence:
    """A sequence of the draft model: the tokens of the target, then its own drafts.

    `computed` of the state counts both. `unusable`: a token of the target is not in the vocabulary
    of the draft model.
    """

    state: TokenSequence
    unusable: bool = False

    @property
    def missing(self) -> int:
        """The number of tokens and drafts that are not in the cache."""
        return self.state.length + len(self.state.drafts) - self.state.computed

    def follow(self, tokens: Sequence[int], vocab: int, blocks: BlockManager) -> None:
        """Take over the target's tokens instead of the drafts, at least one more than are computed.

        The drafts that were right stay in the cache.
        """
        own, known = self.state, self.state.length
        self.unusable = self.unusable or max(tokens[known:], default=0) >= vocab
        computed = min(own.computed, known)
        # Not the last token: its row must run, whose logits give the first draft.
        for draft, token in zip(own.drafts, tokens[known:-1], strict=False):
            if draft != token or computed == own.computed:
                break
            blocks.accept_draft(own.tables, computed)
            computed += 1
        blocks.release_drafts(own.tables)
        own.tokens, own.drafts, own.computed = list(tokens), [], computed

    def chunks(self, budget: int) -> list[Chunk]:
        """The rows that are missing, up to `budget`, the last of which draws.

        One or two are decode rows, which run in a captured step.
        """
        own, count = self.state, min(self.missing, budget)
        if own.drafts:  # it had a row in the last step, so there is room for one
            return [Chunk(own, own.computed, 1, True, own.drafts[-1])]
        if self.missing <= min(2, budget):
            return [Chunk(own, own.computed + i, 1, True) for i in range(count)]
        return [Chunk(own, own.computed, count, count == self.missing)] if count else []


class DraftModelProposer(Proposer):
    """The `Proposer` of a draft model."""

    def __init__(self, runner: ModelRunner, rows: int, max_rows: int, vocab: int) -> None:
        """rows: the most running sequences. max_rows: the rows of a step. vocab: the width of the
        target's logits.
        """
        self.runner, self.max_rows, self.vocab = runner, max_rows, vocab
        self.sequences: list[DraftSequence | None] = [None] * rows

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """See `Proposer`. A sequence whose prompt exceeds a step gets drafts some steps later."""
        drafts: list[list[int]] = [[] for _ in requests]
        live = {i: sequence for i, r in enumerate(requests) if (sequence := self.follow(r))}
        while live:
            plan, budget, drawing = StepPlan(), self.max_rows, list[int]()
            # Those that need few rows first: a long prompt must not take all of them.
            for i, sequence in sorted(live.items(), key=lambda item: item[1].missing):
                chunks = sequence.chunks(budget)
                count = sum(chunk.count for chunk in chunks)
                if count < sequence.missing:
                    del live[i]  # its prompt goes on in the next proposal
                if not self.grow(requests[i].row, sequence, count):
                    live.pop(i, None)
                    continue
                budget -= count
                plan.chunks += chunks
                if i in live:
                    drawing.append(i)
            self.run(plan, [live[i] for i in drawing])
            for i in drawing:
                drafts[i] = live[i].state.drafts
                if len(drafts[i]) == requests[i].count:
                    del live[i]
        return drafts

    def follow(self, request: DraftRequest) -> DraftSequence | None:
        """The sequence of a request, with the target's tokens.

        None for one that exceeds the context, or has a token that the draft model does not know.
        """
        if len(request.tokens) + request.count > self.runner.context:
            return None
        sequence = self.sequences[request.row]
        # Of the same tokens no row is missing whose logits give the first draft.
        if (
            sequence is None
            or request.started
            or sequence.state.computed >= len(request.tokens) == sequence.state.length
        ):
            self.release(request.row)
            sequence = DraftSequence(standalone_sequence([]))
            sequence.state.tables = self.runner.blocks.new_tables()
            self.sequences[request.row] = sequence
        sequence.follow(request.tokens, self.runner.sampler.vocab, self.runner.blocks)
        if sequence.unusable:
            return None
        self.runner.blocks.trim(sequence.state.tables, sequence.state.computed)
        return sequence

    def grow(self, row: int, sequence: DraftSequence, count: int) -> bool:
        """Allocate the blocks for `count` more tokens; without room, release all of a sequence."""
        own, blocks = sequence.state, self.runner.blocks
        if own.drafts:
            has_room = blocks.grow_drafts(own.tables, own.computed, count)
        else:
            has_room = blocks.grow(own.tables, own.computed + count)
        if has_room:
            return True
        self.release(row)
        return False

    def run(self, plan: StepPlan, drawing: Sequence[DraftSequence]) -> None:
        """Run a step, and append the most likely token to the sequences that draw."""
        if not plan.chunks:
            return
        launched = self.runner.forward(plan)
        for chunk in plan.chunks:
            chunk.sequence.computed = chunk.start + chunk.count
        if not drawing or launched.logits is None:
            return
        # The last row of a sequence that has two.
        rows = {chunk.sequence: row for row, chunk in enumerate(launched.drawing)}
        best = launched.logits[:, : self.vocab].argmax(-1).tolist()
        for sequence in drawing:
            sequence.state.drafts.append(best[rows[sequence.state]])

    def release(self, row: int) -> None:
        """Release the blocks of a row's sequence."""
        sequence, self.sequences[row] = self.sequences[row], None
        if sequence is not None:
            self.runner.blocks.release(sequence.state.tables)


def draft_settings(settings: Settings, reference: str) -> Settings:
    """The settings of a draft model beside those of its target."""
    shared = {name: getattr(settings, name) for name in FIELDS}
    return replace(Settings(reference=reference), **shared)


def check_vocabularies(target: Vocabulary, draft: Vocabulary, name: str) -> None:
    """Raise UsageError if the draft model `name` has another vocabulary than its target.

    The end of a vocabulary may differ: models of one family are padded to different sizes, and
    later ones have more control tokens.
    """
    pairs = enumerate(zip(target.pieces, draft.pieces, strict=False))
    differing = next((id for id, (own, other) in pairs if own and other and own != other), None)
    if differing is not None:
        raise UsageError(
            f"--speculate {name}: its vocabulary is another one than the model's: token "
            f"{differing} is {draft.pieces[differing]!r:.40} there and "
            f"{target.pieces[differing]!r:.40} here; choose a draft model of the same family"
        )
    if not (target.pieces and draft.pieces) and target.size != draft.size:
        raise UsageError(
            f"--speculate {name}: it has {draft.size} tokens and the model {target.size}; choose "
            "a draft model of the same family"
        )
