"""The logits processor: masks of the tokens that a grammar allows next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ostro.pipelines import Vocabulary
from ostro.plugins.logits.grammar.compiler import COMPILER, Compiled
from ostro.plugins.logits.grammar.masks import MASKS, GrammarRow, MaskBatch
from ostro.plugins.logits.grammar.parameter import check_parameter

if TYPE_CHECKING:
    from ostro.pipelines import AddedRequest, MaskRequest


class GrammarProcessor:
    """Masks of one model. The grammar of a sequence is kept under its row.

    A grammar that is complete allows only the tokens that end an answer.
    """

    def __init__(self, rows: int, vocabulary: Vocabulary, device: torch.device) -> None:
        self.words = -(-vocabulary.size // 32)
        self.rows: dict[int, GrammarRow] = {}
        self.batches = list[MaskBatch]()  # those that were begun for this step

    @staticmethod
    def check(parameter: Any, vocab: int) -> None:
        """Raise RequestError unless the parameter has the shape of a grammar."""
        check_parameter(parameter)

    @staticmethod
    def prepare(parameter: Any, vocabulary: Vocabulary) -> Compiled:
        """Compile the grammar. Raises RequestError if it is invalid, Overloaded if none can be."""
        return COMPILER.compile(parameter, vocabulary)

    def update(
        self,
        added: Sequence[AddedRequest],
        removed: Sequence[int],
        moved: Sequence[tuple[int, int]],
    ) -> None:
        """Forget removed rows, and begin the grammars of added ones after their output so far."""
        for row in removed:
            self.rows.pop(row, None)
        self.rows |= {target: self.rows.pop(source) for source, target in moved}
        for request in added:
            matcher = request.prepared.matcher()
            self.rows[request.row] = GrammarRow(matcher, self.words, list(request.output))

    def begin(self, requests: Sequence[MaskRequest]) -> None:
        """Begin the masks of a step in threads, while the model computes its logits."""
        missing = list[GrammarRow]()
        for request in requests:
            row = self.rows[request.row]
            row.tokens += request.tokens
            if not row.busy and not row.error and row.masks_of(request.drafts) is None:
                row.drafts = list(request.drafts)
                missing.append(row)
        if missing:
            self.batches.append(MASKS.begin(missing))

    def fill(
        self, requests: Sequence[MaskRequest], masks: Tensor
    ) -> Mapping[int, Exception | None]:
        """Write the masks of the tokens that the grammars allow.

        masks [n, ceil(size / 32)] int32 on the host; request k owns 1 + len(drafts) rows, in the
        order of `requests`: before each draft and after the last. Rows behind a draft that the
        grammar forbids are left as they are: that draft is not accepted. Returns by index the
        errors of requests, whose output so far exceeds a limit, and None for those whose masks
        take longer than a step waits.
        """
        self.begin(requests)
        while self.batches:
            self.batches.pop().wait()
        unfilled: dict[int, Exception | None] = {}
        parts, first = list[Tensor](), 0
        for index, request in enumerate(requests):
            row, end = self.rows[request.row], first + 1 + len(request.drafts)
            computed = None if row.busy or row.error else row.masks_of(request.drafts)
            if computed is None:
                unfilled[index] = None if row.busy else row.error
                computed = masks[first:end].clone()
            parts.append(computed)
            first = end
        torch.cat(parts, out=masks[:first])
        return unfilled

    def forced(self, request: MaskRequest) -> list[int]:
        """The tokens that the grammar forces after those of a request."""
        row = self.rows[request.row]
        row.tokens += request.tokens
        if row.slow:  # its tokens are read with the next mask, in a thread
            return []
        row.read()
        return [] if row.error else row.matcher.compute_ff_tokens()
