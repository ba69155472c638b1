"""Streamed responses, such as server-sent events, and work that ends with its client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ostro.core.errors import OstroError
from ostro.core.plugins.task_errors import task_errors
from ostro.core.routes import EventFormat
from ostro.entrypoints.http.deadline import deadline_of, timed_out
from ostro.entrypoints.http.errors import InternalError, request_id, respond_to
from ostro.entrypoints.operations.requests.errors import error_content_of
from ostro.entrypoints.operations.requests.event_formats import OPENAI_EVENTS

log = logging.getLogger(__name__)
KEEP_ALIVE = 10.0
"""Seconds without an event after which a comment is sent: proxies close connections that are silent
for longer, usually a minute.
"""
HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
"""Proxies neither store a stream nor collect its events."""
T = TypeVar("T")


class EventStream(Response):
    """Sends events as they are generated, and closes the generator when the client disconnects.

    An error before the first event sets the status of the response; a later one becomes an event.
    The deadline of the request is such an error. The log has the traceback of unexpected errors.
    """

    def __init__(
        self,
        events: AsyncGenerator[Any, None],
        format: EventFormat = OPENAI_EVENTS,
        error_json: Callable[[OstroError], Any] = error_content_of,
        place: str = "",
    ) -> None:
        """error_json: the JSON of an error, OpenAI's by default. place: the route and its plugin,
        for the log.
        """
        self.events, self.format, self.error_json = events, format, error_json
        self.place = place
        self.background = None
        self.started = False
        self.last = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A closed connection shows as a message only: a task has to wait for it meanwhile.
        sending = asyncio.ensure_future(self._send_all(scope, receive, send))
        watching = asyncio.ensure_future(self._watch(receive, send))
        try:
            await asyncio.wait({sending, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            sending.cancel()
            results = await asyncio.gather(sending, watching, return_exceptions=True)
            await self._close(scope)
        for result in results:
            # A client that leaves while the server writes is no error of the server.
            if isinstance(result, Exception) and not isinstance(result, OSError):
                raise result

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            try:
                async with asyncio.timeout_at(deadline_of(scope)) as timeout:
                    while (data := await self._next(scope)) is not None:
                        await self._write(send, data)
            except TimeoutError:
                if not timeout.expired():  # of the connection
                    raise
                raise timed_out() from None
        except OstroError as error:
            if not self.started:
                return await respond_to(error, scope)(scope, receive, send)
            await self._write(send, self._encode_error(scope, error))
        await self._write(send, self.format.end, more=False)

    async def _next(self, scope: Scope) -> bytes | None:
        """The bytes of the next event, None after the last one. Raises OstroError only."""
        try:
            with task_errors(self.place):
                try:
                    return self.format.encode(await anext(self.events))
                except StopAsyncIteration:
                    return None
        except OstroError:
            raise
        except Exception as error:
            raise self._unexpected(scope, error) from error

    def _encode_error(self, scope: Scope, error: OstroError) -> bytes:
        """The bytes of the event of an error; b"" if the plugin's functions cannot write it."""
        try:
            with task_errors(self.place):
                return self.format.encode(self.error_json(error))
        except Exception as other:
            self._unexpected(scope, other)
            return b""

    async def _close(self, scope: Scope) -> None:
        """Close the generator. Its client has the response by now, or has left."""
        try:
            with task_errors(self.place):
                await self.events.aclose()
        except Exception as error:
            self._unexpected(scope, error)

    def _unexpected(self, scope: Scope, error: Exception) -> InternalError:
        """Log an error of the handler; return the one for the client."""
        id = request_id(scope)
        log.error("request %s has failed in %s", id, self.place or "a stream", exc_info=error)
        return InternalError(id)

    async def _write(self, send: Send, data: bytes, *, more: bool = True) -> None:
        if not self.started:
            self.started = True
            head = [(b"content-type", self.format.media_type.encode()), *HEADERS]
            await send({"type": "http.response.start", "status": 200, "headers": head})
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
                if self.format.keep_alive and loop.time() - self.last >= KEEP_ALIVE / 2:
                    await self._write(send, self.format.keep_alive)
                continue
            if message["type"] == "http.disconnect":
                return


async def guarded_parts(parts: AsyncIterator[bytes], place: str) -> AsyncGenerator[bytes, None]:
    """The parts of a response of a plugin, whose errors are ordinary ones: see `task_errors`."""
    while True:
        with task_errors(place):
            try:
                part = await anext(parts)
            except StopAsyncIteration:
                return
        yield part


async def unless_disconnected(request: Request, work: Awaitable[T]) -> T:
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
