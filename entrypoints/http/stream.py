"""Answers that end when their client does: server-sent events, and waiting for a whole answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from time import monotonic
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ostro.core.errors import OstroError
from ostro.entrypoints.http.errors import body_of, respond_to

KEEP_ALIVE = 10.0
"""Seconds of silence after which a comment is sent, so that nobody on the way gives up."""
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


class EventStream(Response):
    """Sends events as they come, and stops their generator when the client goes away.

    An error before the first event is answered with its own status; a later one is an event.
    """

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        self.events = events
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
                return await respond_to(error)(scope, receive, send)
            await self._write(send, event(body_of(error)) + DONE)
        await send({"type": "http.response.body", "body": b""})

    async def _write(self, send: Send, data: bytes) -> None:
        if not self.started:
            self.started = True
            await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
        self.last = monotonic()
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _watch(self, receive: Receive, send: Send) -> None:
        """Return when the client is gone; meanwhile break long silences."""
        while True:
            try:
                message = await asyncio.wait_for(receive(), KEEP_ALIVE)
            except TimeoutError:
                if monotonic() - self.last >= KEEP_ALIVE / 2:
                    await self._write(send, b": keep-alive\n\n")
                continue
            if message["type"] == "http.disconnect":
                return


async def while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do a request's work as long as its client is there. Raises ClientDisconnect if it goes."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(gone(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def gone(request: Request) -> None:
    """Return when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
