"""The engine and the limits of keys, as a worker sees them: both belong to the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import msgspec

from ostro.core.errors import EngineDied, OstroError
from ostro.core.ipc.client import AsyncEngine
from ostro.core.ipc.frames import map_arrays
from ostro.core.messages.arrays import Array
from ostro.core.messages.commands import AdapterResult, Outputs, Ready, ToEngine
from ostro.core.messages.outputs import Stats
from ostro.core.messages.requests import Request
from ostro.entrypoints.http.request_record import OTHER, RECORD
from ostro.entrypoints.http.workers.messages import Enter, Leave, Submit
from ostro.entrypoints.operations.access.admission import CLAIM
from ostro.entrypoints.operations.access.keys import Key
from ostro.entrypoints.operations.access.quotas import Quota, Quotas

Write = Callable[[msgspec.Struct], None]


class WorkerEngine(AsyncEngine):
    """Sends requests to the server, which admits them and passes them to its engine.

    It does not check whether the engine accepts requests: the server does.
    """

    def __init__(self, write: Write) -> None:
        """write: sends a message to the server."""
        super().__init__()
        self.write = write

    async def start(self) -> Ready:
        assert self.info is not None, "the server starts the engine"
        return self.info

    async def close(self) -> None:
        self.lose()

    def lose(self) -> None:
        """Fail all requests and commands: the server has ended."""
        self._lose(EngineDied("the server has ended"))

    def _send(self, message: ToEngine) -> None:
        if not isinstance(message, Request):
            return self.write(message)
        own, record = CLAIM.get(), RECORD.get()
        quota = None if own is None else own.quota
        claim, key = (quota.number, quota.key) if isinstance(quota, WorkerQuota) else (None, None)
        route = OTHER if record is None else record.route
        self.write(Submit(request=message, claim=claim, key=key, route=route))

    def _share(self, request: Request) -> Request:
        return map_arrays(request, Array.share)

    def deliver(self, message: Outputs | AdapterResult | Stats) -> None:
        """Pass a message of the server to the request or command that waits for it."""
        self._deliver(message)

    def refuse(self, id: str, error: OstroError) -> None:
        """Fail a request or a command."""
        if (result := self._commands.get(id)) is not None and not result.done():
            result.set_exception(error)
        elif (stream := self._streams.get(id)) is not None:
            stream.fail(error)


class WorkerQuota(Quota):
    """The limits of the caller of one HTTP request, which the server counts.

    `latest` are the headers of the server's last answer.
    """

    def __init__(self, quotas: WorkerQuotas, key: Key | None) -> None:
        super().__init__()
        self.quotas, self.number = quotas, next(quotas.numbers)
        self.key = None if key is None else key.digest
        self.latest: dict[str, str] = {}

    async def acquire(self) -> None:
        answer = asyncio.get_running_loop().create_future()
        self.quotas.entering[self.number] = answer
        self.quotas.under_way[self.number] = self
        self.quotas.write(Enter(claim=self.number, key=self.key))
        try:
            await answer
        except BaseException:
            self.leave()
            raise
        finally:
            del self.quotas.entering[self.number]

    def leave(self) -> None:
        self.quotas.under_way.pop(self.number, None)
        self.quotas.write(Leave(self.number))

    def headers(self) -> dict[str, str]:
        return self.latest


class WorkerQuotas(Quotas):
    """The limits of all callers, which the server counts."""

    def __init__(self, write: Write) -> None:
        """write: sends a message to the server."""
        super().__init__()
        self.write, self.numbers = write, count()
        self.under_way: dict[int, WorkerQuota] = {}
        self.entering: dict[int, asyncio.Future[None]] = {}

    def of(self, name: str, key: Key | None = None) -> WorkerQuota:
        return WorkerQuota(self, key)

    def lose(self) -> None:
        """Fail the HTTP requests that wait for an answer: the server has ended."""
        for answer in self.entering.values():
            if not answer.done():
                answer.set_exception(EngineDied("the server has ended"))

    def answer(self, number: int, headers: dict[str, str], error: OstroError | None = None) -> None:
        """Handle the server's answer to an HTTP request."""
        if (quota := self.under_way.get(number)) is not None:
            quota.latest = headers
        if (answer := self.entering.get(number)) is None or answer.done():
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)
