"""Computes the masks of grammars in threads: a step waits for them only for a short time."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from time import thread_time

import torch
from llguidance import LLExecutor, LLMatcher
from torch import Tensor

from ostro.errors import RequestError
from ostro.plugins.logits.grammar.compiler import lower_priority
from ostro.plugins.logits.grammar.matcher import check_matcher

STEP = 0.01
"""The longest time that a step waits for its masks, in seconds."""
MAX_TOKEN = 0.05
"""Limit on the processor time for one token, in seconds. Unambiguous grammars take microseconds."""
SLOW = 0.001
"""Processor time for one token, in seconds, beyond which no step waits for a grammar's masks."""
THREADS = 4
"""The most threads whose masks steps wait for. A mask that takes long occupies one of them."""
SHARE = 32
"""Masks per thread: each takes 5 to 20 us, and the other threads are busy."""


@cache
def draft_executor() -> LLExecutor:
    """Computes the masks before and behind drafts, which a matcher alone cannot."""
    return LLExecutor(1)


@dataclass(eq=False)
class GrammarRow:
    """The grammar of one sequence; its masks are of `words` int32.

    While `busy`, a thread uses the matcher, or will. `tokens` are those that the matcher has not
    read yet. `masks` [1 + len(drafts), words] are the next ones, None until they are computed.
    `error` ends the sequence. `seconds` is the processor time of the last token.
    """

    matcher: LLMatcher
    words: int
    tokens: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    masks: Tensor | None = None
    error: Exception | None = None
    seconds: float = 0.0
    busy: bool = False

    def __post_init__(self) -> None:
        # The mask of each step without drafts: the same memory, so that no step allocates it.
        self.single = torch.empty((1, self.words), dtype=torch.int32)
        self.pointer = self.single.data_ptr()

    @property
    def slow(self) -> bool:
        """Whether no step waits for the masks."""
        return self.seconds > SLOW

    def masks_of(self, drafts: Sequence[int]) -> Tensor | None:
        """The masks before and behind these drafts; None unless they are computed."""
        count = 1 + len(drafts)
        if self.tokens or self.masks is None or len(self.masks) < count:
            return None
        return self.masks if len(self.masks) == count else self.masks[:count]

    def read(self) -> None:
        """Have the matcher read the tokens. Sets `error` if they exceed a limit."""
        self.masks, self.seconds = None, 0.0
        if self.tokens:
            start, count = thread_time(), len(self.tokens)
            self.matcher.consume_tokens(self.tokens)
            self.tokens = []
            self.check((thread_time() - start) / count)

    def compute(self) -> None:
        """Read the tokens and compute the masks. Sets `error` if that fails."""
        try:
            self.read()
            if self.error is None:
                self.fill()
        except Exception as error:
            self.error = error
        except BaseException as error:  # llguidance panicked
            self.error = RuntimeError(f"{type(error).__name__}: {error}")
        self.busy = False

    def fill(self) -> None:
        """Compute the masks. Those behind a draft that the grammar forbids allow every token."""
        start = thread_time()
        if self.drafts:
            masks = torch.full((1 + len(self.drafts), self.words), -1, dtype=torch.int32)
            entries = [(self.matcher, 0, self.drafts)]
            target = (masks.data_ptr(), self.words * masks.element_size(), len(masks))
            draft_executor().unsafe_compute_mask_ptr_with_draft_token(entries, *target)
        else:
            masks = self.single
            self.matcher.unsafe_compute_mask_ptr(self.pointer, self.words * masks.element_size())
        self.check(self.seconds + (thread_time() - start) / len(masks))
        self.masks = masks

    def check(self, seconds: float) -> None:
        """Set `error` if the matcher failed, or if this processor time of a token is too long."""
        self.seconds = seconds
        try:
            check_matcher(self.matcher)
        except RequestError as error:
            self.error = beyond(str(error))
        if seconds > MAX_TOKEN:
            self.error = beyond("a token takes too long to read; make it unambiguous")


class MaskBatch:
    """Rows whose masks are computed in threads, and the results of these threads."""

    def __init__(self, rows: deque[GrammarRow], threads: Sequence[Future[None]]) -> None:
        self.rows, self.threads = rows, threads

    def wait(self) -> None:
        """Wait for the masks as long as a step may. Rows that have not begun are no longer busy."""
        if not all(thread.done() for thread in self.threads):
            wait(self.threads, STEP)
        while self.rows:
            try:
                self.rows.pop().busy = False
            except IndexError:  # a thread took the last one
                break


class MaskThreads:
    """The threads that compute masks, for all models. They start with the first masks."""

    def __init__(self) -> None:
        self._quick = ThreadPoolExecutor(THREADS, "ostro-masks")
        # One thread, below all others: slow grammars do not take the cores of steps.
        self._slow = ThreadPoolExecutor(1, "ostro-slow-masks", initializer=run_when_idle)

    def begin(self, rows: Sequence[GrammarRow]) -> MaskBatch:
        """Begin the masks of rows that are not busy; no step waits for those of slow ones.

        Rows without masks after `MaskBatch.wait` are busy, or have not begun: they are to be given
        again.
        """
        quick = deque[GrammarRow]()
        # The quickest first: the others may take the time of the step.
        for row in sorted(rows, key=lambda row: row.seconds):
            row.busy = True
            if row.slow:
                self._slow.submit(row.compute)
            else:
                quick.append(row)
        threads = min(THREADS, -(-len(quick) // SHARE))
        return MaskBatch(quick, [self._quick.submit(compute_all, quick) for _ in range(threads)])


def run_when_idle() -> None:
    """Let this thread run on cores that no other one needs, where the system has such threads.

    A lower priority is not enough: two threads of a step may then share the other core, and each
    wait for the other one takes a time slice of some milliseconds.
    """
    lower_priority()
    if sys.platform == "linux":
        with suppress(OSError):  # not allowed in this container
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))


def compute_all(rows: deque[GrammarRow]) -> None:
    """Compute the masks of rows until none is left."""
    while rows:
        try:
            row = rows.popleft()
        except IndexError:  # another thread took the last one
            return
        row.compute()


def beyond(reason: str) -> RequestError:
    """The error of a sequence whose grammar exceeds a limit while it is generated."""
    return RequestError(f"the output exceeds a limit of its grammar: {reason}", param="grammar")


MASKS = MaskThreads()
"""The threads that all models of this process share."""
