"""Server-sent events, and work that is cancelled when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ostro.core.errors import OstroError
from ostro.entrypoints.http.errors import error_content_of, respond_to

KEEP_ALIVE = 10.0
"""Seconds without an event after which a comment is sent, so that proxies keep the connection."""
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
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        on_error: Callable[[OstroError], bytes] = error_event,
        headers: Sequence[tuple[bytes, bytes]] = HEADERS,
    ) -> None:
        """on_error: the event of an error, OpenAI's by default. headers: those of the response."""
        self.events, self.on_error, self.head = events, on_error, list(headers)
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
            async for data in self.events:
                await self._write(send, data)
        except OstroError as error:
            if not self.started:
                return await respond_to(error, scope)(scope, receive, send)
            await self._write(send, self.on_error(error))
        await send({"type": "http.response.body", "body": b""})

    async def _write(self, send: Send, data: bytes) -> None:
        if not self.started:
            self.started = True
            await send({"type": "http.response.start", "status": 200, "headers": list(self.head)})
        self.last = monotonic()
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _watch(self, receive: Receive, send: Send) -> None:
        """Send comments during long pauses. Return when the client has disconnected."""
        while True:
            try:
                message = await asyncio.wait_for(receive(), KEEP_ALIVE)
            except TimeoutError:
                if monotonic() - self.last >= KEEP_ALIVE / 2:
                    await self._write(send, b": keep-alive\n\n")
                continue
            if message["type"] == "http.disconnect":
                return


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await the work of a request. Cancel it and raise ClientDisconnect if the client leaves."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def wait_for_disconnect(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
