"""The logits processor: masks of the tokens that a grammar allows next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from time import thread_time
from typing import TYPE_CHECKING, Any

import torch
from llguidance import LLExecutor, LLMatcher
from torch import Tensor

from ostro.errors import RequestError
from ostro.pipelines import Vocabulary
from ostro.plugins.logits.grammar.compiler import COMPILER, Compiled
from ostro.plugins.logits.grammar.matcher import check_matcher
from ostro.plugins.logits.grammar.parameter import check_parameter

if TYPE_CHECKING:
    from ostro.pipelines import AddedRequest, MaskRequest

PARALLEL = 64
"""Masks from which threads compute them: each takes 5 to 12 us, and other threads are busy."""
MAX_STEP = 0.05
"""Limit on the processor time for one token, in seconds. Unambiguous grammars take microseconds;
the sequences of a batch wait for each other.
"""


@cache
def executor() -> LLExecutor:
    """The threads that compute the masks of several sequences, in llguidance."""
    return LLExecutor()


class GrammarProcessor:
    """Masks of one model. A sequence's matcher is kept under its row.

    A grammar that is complete allows only the tokens that end an answer.
    """

    def __init__(self, rows: int, vocabulary: Vocabulary, device: torch.device) -> None:
        self.matchers: dict[int, LLMatcher] = {}
        self.slow: set[int] = set()
        """Rows whose tokens took too long to read."""

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
            self.matchers.pop(row, None)
            self.slow.discard(row)
        held = {target: self.matchers.pop(source) for source, target in moved}
        self.matchers |= held
        self.slow = {dict(moved).get(row, row) for row in self.slow}
        for each in added:
            self.matchers[each.row] = each.prepared.matcher()
            self.matchers[each.row].consume_tokens(list(each.output))

    def fill(self, requests: Sequence[MaskRequest], masks: Tensor) -> Mapping[int, Exception]:
        """Write the masks of the tokens that the grammars allow.

        masks [n, ceil(size / 32)] int32 on the host; request k owns 1 + len(drafts) rows, in the
        order of `requests`: before each draft and after the last. Rows behind a draft that the
        grammar forbids are left as they are: that draft is not accepted. Returns the errors of
        requests by index: the output so far exceeds the limits of llguidance.
        """
        errors: dict[int, Exception] = {}
        plain: list[tuple[LLMatcher, int]] = []
        drafted: list[tuple[LLMatcher, int, list[int]]] = []
        first = 0
        for index, request in enumerate(requests):
            matcher = self.read(request)
            if request.row in self.slow:
                errors[index] = beyond("a token takes too long to read; make it unambiguous")
            if index in errors or matcher.is_error():
                pass  # its masks stay as they are
            elif request.drafts:
                drafted.append((matcher, first, list(request.drafts)))
            else:
                plain.append((matcher, first))
            first += 1 + len(request.drafts)
        pointer, size = masks.data_ptr(), masks.stride(0) * masks.element_size()
        target = (pointer, size, masks.shape[0])
        if len(plain) >= PARALLEL:
            executor().unsafe_compute_mask_ptr(plain, *target)
        else:
            for matcher, row in plain:
                matcher.unsafe_compute_mask_ptr(pointer + row * size, size)
        if drafted:
            executor().unsafe_compute_mask_ptr_with_draft_token(drafted, *target)
        for index, request in enumerate(requests):
            try:
                check_matcher(self.matchers[request.row])
            except RequestError as error:
                errors[index] = beyond(str(error))
        return errors

    def forced(self, request: MaskRequest) -> list[int]:
        """The tokens that the grammar forces after those of a request."""
        matcher = self.read(request)
        return [] if matcher.is_error() else matcher.compute_ff_tokens()

    def read(self, request: MaskRequest) -> LLMatcher:
        """The matcher of a request, behind its new tokens."""
        matcher, start = self.matchers[request.row], thread_time()
        matcher.consume_tokens(list(request.tokens))
        if thread_time() - start > MAX_STEP * max(1, len(request.tokens)):
            self.slow.add(request.row)
        return matcher


def beyond(reason: str) -> RequestError:
    """The error of a sequence whose grammar exceeds a limit while it is generated."""
    return RequestError(f"the output exceeds a limit of its grammar: {reason}", param="grammar")
