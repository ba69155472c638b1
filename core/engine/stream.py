"""Outputs of one request between the engine's client and whoever reads them."""

from __future__ import annotations

import asyncio

from ostro.core.engine.request import TokenOutput
from ostro.core.errors import OstroError, Overloaded

BUFFER = 1 << 17
"""Tokens and logprobs that may wait for the reader of one request."""


class Stream:
    """Outputs of one request that nobody has read yet, merged per choice: a slow reader gets fewer
    and larger ones. One that lets more than `BUFFER` pile up loses its request."""

    def __init__(self) -> None:
        self._waiting: dict[int, TokenOutput] = {}
        self._size = 0
        self._error: OstroError | None = None
        self._change = asyncio.Event()

    def put(self, output: TokenOutput) -> None:
        """Add an output behind those of its choice."""
        self._size += size(output)
        if self._size > BUFFER:
            self.fail(Overloaded("the answer is not being read; its request was dropped"))
            return
        if known := self._waiting.get(output.index):
            merge(known, output)
        else:
            self._waiting[output.index] = output
        self._change.set()

    def fail(self, error: OstroError) -> None:
        """End the stream with an error."""
        self._error = self._error or error
        self._change.set()

    async def get(self) -> TokenOutput:
        """The next output. Raises what the stream has failed with."""
        await self._change.wait()
        if self._error is not None:
            raise self._error
        index = next(iter(self._waiting))
        output = self._waiting.pop(index)
        self._size -= size(output)
        if not self._waiting:
            self._change.clear()
        return output


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
