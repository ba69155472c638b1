"""Streams: buffers of the outputs of one request between the client and its reader."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from ostro.core.errors import OstroError, Overloaded
from ostro.core.messages.outputs import JobOutput, TokenOutput

Out = TypeVar("Out", TokenOutput, JobOutput)
BUFFER = 1 << 17
"""Most tokens and logprobs in the buffer of one request: a reader that stalls fills it."""


class OutputStream(ABC, Generic[Out]):
    """The outputs of one request that have not been read."""

    def __init__(self) -> None:
        self._error: OstroError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._waiting: dict[int, Out] = {}  # by the index of their choice

    @abstractmethod
    def put(self, output: Out) -> None:
        """Append an output."""

    def take(self) -> Out:
        """Remove the next output and return it."""
        return self._waiting.pop(next(iter(self._waiting)))

    def fail(self, error: OstroError) -> None:
        """End the stream with an error."""
        self._error = self._error or error
        self._wake()

    def _wake(self) -> None:
        """Let the reader go on. A future costs less per token than an `asyncio.Event`."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def get(self) -> Out:
        """Wait for the next output. Raises the error of a stream that has failed."""
        if not self._waiting and self._error is None:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        # Before outputs that are left: a reader of an aborted request needs none of them.
        if self._error is not None:
            raise self._error
        return self.take()


class TokenStream(OutputStream[TokenOutput]):
    """Outputs of tokens, merged per choice: a slow reader gets fewer and larger ones.

    The request of a reader that lets more than `BUFFER` accumulate fails with Overloaded.
    """

    def __init__(self) -> None:
        super().__init__()
        self._size = 0

    def put(self, output: TokenOutput) -> None:
        self._size += size(output)
        # The engine does not wait for readers: one that stalls must not fill the memory.
        if self._size > BUFFER:
            self.fail(Overloaded("the client does not read the response; the request was aborted"))
            return
        if known := self._waiting.get(output.index):
            merge(known, output)
        else:
            self._waiting[output.index] = output
        self._wake()

    def take(self) -> TokenOutput:
        output = super().take()
        self._size -= size(output)
        return output


class JobStream(OutputStream[JobOutput]):
    """The latest output of a job: each one replaces the one before."""

    def put(self, output: JobOutput) -> None:
        self._waiting[0] = output
        self._wake()


def size(output: TokenOutput) -> int:
    """The approximate number of tokens and logprobs in an output."""
    if output.logprobs is None and output.prompt_logprobs is None:
        return 1 + len(output.tokens)
    logprobs = [*(output.logprobs or ()), *(output.prompt_logprobs or ())]
    return 1 + len(output.tokens) + sum(1 + len(entry.top) for entry in logprobs if entry)


def merge(first: TokenOutput, later: TokenOutput) -> None:
    """Append an output to an earlier one of the same choice, in place."""
    first.tokens = first.tokens + later.tokens
    if later.logprobs is not None:
        first.logprobs = (first.logprobs or []) + later.logprobs
    first.prompt_logprobs = first.prompt_logprobs or later.prompt_logprobs
    first.prompt_tokens = first.prompt_tokens or later.prompt_tokens
    first.cached = first.cached or later.cached
    first.drafted, first.accepted = first.drafted + later.drafted, first.accepted + later.accepted
    first.finish, first.stopped_by = later.finish, later.stopped_by
    first.error, first.kind, first.param = later.error, later.kind, later.param
    first.status, first.code = later.status, later.code
