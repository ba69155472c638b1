"""Streamed responses, such as server-sent events, and work that ends with its client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ostro.core.errors import OstroError
from ostro.entrypoints.http.deadline import deadline_of, timed_out
from ostro.entrypoints.http.errors import error_content_of, respond_to

KEEP_ALIVE = 10.0
"""Seconds without an event after which a comment is sent, so that proxies keep the connection."""
COMMENT = b": keep-alive\n\n"
"""A comment between server-sent events."""
DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
T = TypeVar("T")


def event(content: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def error_event(error: OstroError) -> bytes:
    """OpenAI's event of an error, and the end of the stream."""
    return event(error_content_of(error)) + DONE


class EventStream(Response):
    """Sends events as they are generated, and closes the generator when the client disconnects.

    An error before the first event sets the status of the response; a later one becomes an event.
    The deadline of the request is such an error.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        on_error: Callable[[OstroError], bytes] = error_event,
        headers: Sequence[tuple[bytes, bytes]] = HEADERS,
        keep_alive: bytes | None = COMMENT,
    ) -> None:
        """on_error: the event of an error, OpenAI's by default. headers: those of the response.
        keep_alive: what is sent during long pauses, None for formats without comments.
        """
        self.events, self.on_error, self.head = events, on_error, list(headers)
        self.keep_alive = keep_alive
        self.background = None
        self.started = False
        self.last = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send_all(scope, receive, send))
        watching = asyncio.ensure_future(self._watch(receive, send))
        try:
            await asyncio.wait({sending, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            sending.cancel()
            results = await asyncio.gather(sending, watching, return_exceptions=True)
            await self.events.aclose()
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, OSError):
                raise result

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            try:
                async with asyncio.timeout_at(deadline_of(scope)) as timeout:
                    async for data in self.events:
                        await self._write(send, data)
            except TimeoutError:
                if not timeout.expired():
                    raise
                raise timed_out() from None
        except OstroError as error:
            if not self.started:
                return await respond_to(error, scope)(scope, receive, send)
            await self._write(send, self.on_error(error))
        await self._write(send, b"", more=False)

    async def _write(self, send: Send, data: bytes, *, more: bool = True) -> None:
        if not self.started:
            self.started = True
            await send({"type": "http.response.start", "status": 200, "headers": list(self.head)})
        self.last = asyncio.get_running_loop().time()
        await send({"type": "http.response.body", "body": data, "more_body": more})

    async def _watch(self, receive: Receive, send: Send) -> None:
        """Keep the connection during long pauses. Return when the client has disconnected."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(KEEP_ALIVE):
                    message = await receive()
            except TimeoutError:
                if self.keep_alive and loop.time() - self.last >= KEEP_ALIVE / 2:
                    await self._write(send, self.keep_alive)
                continue
            if message["type"] == "http.disconnect":
                return


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await the work of a request. Cancel it and raise ClientDisconnect if the client leaves.

    Raises RequestTimeout at the deadline of the request.
    """
    deadline, now = deadline_of(request.scope), asyncio.get_running_loop().time()
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait(
            {working, watching},
            timeout=None if deadline is None else max(0, deadline - now),
            return_when=asyncio.FIRST_COMPLETED,
        )
        if working.done():
            return working.result()
        if not watching.done():
            raise timed_out()
        raise ClientDisconnect()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def wait_for_disconnect(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
