"""Outputs of one request between the engine's client and whoever reads them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from ostro.core.engine.request import JobOutput, TokenOutput
from ostro.core.errors import OstroError, Overloaded

Out = TypeVar("Out", TokenOutput, JobOutput)
BUFFER = 1 << 17
"""Tokens and logprobs that may wait for the reader of one request."""


class OutputStream(ABC, Generic[Out]):
    """Outputs of one request that nobody has read yet."""

    def __init__(self) -> None:
        self._error: OstroError | None = None
        self._change = asyncio.Event()

    @abstractmethod
    def put(self, output: Out) -> None:
        """Add an output behind the others."""

    @abstractmethod
    def take(self) -> tuple[Out, bool]:
        """The next output, and whether more are waiting."""

    def fail(self, error: OstroError) -> None:
        """End the stream with an error."""
        self._error = self._error or error
        self._change.set()

    async def get(self) -> Out:
        """The next output. Raises what the stream has failed with."""
        await self._change.wait()
        if self._error is not None:
            raise self._error
        output, more = self.take()
        if not more:
            self._change.clear()
        return output


class TokenStream(OutputStream[TokenOutput]):
    """Outputs merged per choice: a slow reader gets fewer and larger ones. One that lets more than
    `BUFFER` pile up loses its request."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[int, TokenOutput] = {}
        self._size = 0

    def put(self, output: TokenOutput) -> None:
        self._size += size(output)
        if self._size > BUFFER:
            self.fail(Overloaded("the answer is not being read; its request was dropped"))
            return
        if known := self._waiting.get(output.index):
            merge(known, output)
        else:
            self._waiting[output.index] = output
        self._change.set()

    def take(self) -> tuple[TokenOutput, bool]:
        index = next(iter(self._waiting))
        output = self._waiting.pop(index)
        self._size -= size(output)
        return output, bool(self._waiting)


class JobStream(OutputStream[JobOutput]):
    """The last output alone: whoever reads slowly misses what is past."""

    def __init__(self) -> None:
        super().__init__()
        self._last: JobOutput | None = None

    def put(self, output: JobOutput) -> None:
        self._last = output
        self._change.set()

    def take(self) -> tuple[JobOutput, bool]:
        assert self._last is not None
        return self._last, False


def size(output: TokenOutput) -> int:
    """Roughly how many numbers an output holds."""
    told = [*(output.logprobs or ()), *(output.prompt_logprobs or ())]
    return 1 + len(output.tokens) + sum(1 + len(entry.top) for entry in told if entry)


def merge(first: TokenOutput, then: TokenOutput) -> None:
    """Append an output to an earlier one of the same choice."""
    first.tokens = first.tokens + then.tokens
    if then.logprobs is not None:
        first.logprobs = (first.logprobs or []) + then.logprobs
    first.prompt_logprobs = first.prompt_logprobs or then.prompt_logprobs
    first.prompt_tokens = first.prompt_tokens or then.prompt_tokens
    first.cached = first.cached or then.cached
    first.finish, first.stopped_by, first.error = then.finish, then.stopped_by, then.error
