"""Prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding): drafts without a model.

If the last tokens of a sequence occurred in it before, what followed them is proposed. Text that is
copied from the prompt, such as code that is edited, repeats long runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostro.pipelines import DraftRequest, Proposer

SIZES = (4, 3, 2)
"""Lengths of the runs of tokens that are looked up, the longest first: it predicts best."""

Index = dict[tuple[int, ...], int]
"""Runs of tokens, and the position after their last occurrence."""


class NgramProposer(Proposer):
    """Looks up the last tokens of a sequence in its earlier ones, in constant time per token."""

    def __init__(self, rows: int, vocab: int) -> None:
        self.indices: list[Index] = [{} for _ in range(rows)]
        self.indexed = [0] * rows

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """See `ostro.pipelines.Proposer`."""
        return [self.look_up(request) for request in requests]

    def release(self, row: int) -> None:
        """Forget the tokens of a row: the index of a long prompt is large."""
        self.indices[row] = {}

    def look_up(self, request: DraftRequest) -> list[int]:
        """The tokens that followed the last occurrence of the longest run that occurred before."""
        row, tokens = request.row, request.tokens
        if request.started:
            self.indices[row], self.indexed[row] = {}, 0
        index = self.indices[row]
        # Runs that end before the last token: the last run itself must not be found.
        for end in range(self.indexed[row], len(tokens)):
            for size in SIZES:
                if size <= end:
                    index[tuple(tokens[end - size : end])] = end
        self.indexed[row] = len(tokens)
        for size in SIZES:
            at = index.get(tuple(tokens[-size:])) if size <= len(tokens) else None
            if at is not None:
                return list(tokens[at : at + request.count])
        return []
