"""The HTTP APIs as an ASGI application, for a server other than `ostro serve`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Receive, Scope, Send

from ostro.core.errors import UsageError
from ostro.core.settings import Settings
from ostro.entrypoints.http.loop_watchdog import watch_event_loop
from ostro.entrypoints.http.options import Options
from ostro.entrypoints.serve_config import ModelOptions, check_names

if TYPE_CHECKING:
    from ostro.entrypoints.http.server import Server


class Application:
    """An ASGI application that serves models from a child process.

    The lifespan starts the engine and ends it: startup completes when the models are loaded,
    shutdown waits for running requests as SIGTERM does. The ASGI server has to limit the heads of
    requests, which `ostro serve` does in its own listener.
    """

    def __init__(self, models: Sequence[Settings], **options: Any) -> None:
        """models: settings of the models, the default first. options: those of `ostro serve`, with
        underscores, except host, port and workers. Raises UsageError for models of one name.
        """
        self.models = [ModelOptions(settings=settings) for settings in models]
        self.options = Options(**options)
        check_names(self.models)
        if self.options.workers != 1:
            raise UsageError("an ASGI application has one worker; start `ostro serve --workers N`")
        self.app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or the lifespan."""
        if scope["type"] == "lifespan":
            return await self.live(receive, send)
        if self.app is None:
            raise RuntimeError("the ASGI server has to run the lifespan before requests")
        await self.app(scope, receive, send)

    async def live(self, receive: Receive, send: Send) -> None:
        """Start the engine, and end it with the ASGI server."""
        from ostro.entrypoints.http.server import Server  # not with `ostro.http`: it takes 0.5 s

        await receive()
        loaded = asyncio.Event()
        options = replace(self.options, ready=lambda _: loaded.set())
        server = Server(self.models, options, None, time.perf_counter())
        serving = asyncio.ensure_future(self.serve(server))
        waiting = asyncio.ensure_future(loaded.wait())
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if serving.done():
            message = str(serving.exception())
            return await send({"type": "lifespan.startup.failed", "message": message})
        await send({"type": "lifespan.startup.complete"})
        await receive()
        server.stop.set()
        with contextlib.suppress(Exception):  # requests have seen the error
            await serving
        await send({"type": "lifespan.shutdown.complete"})

    async def serve(self, server: Server) -> None:
        """Run the engine until the server stops."""
        server.engine.spawn()
        try:
            self.app = await server.open()
            try:
                with watch_event_loop(server.plugins):
                    await server.watch()
            finally:
                await server.close()
        finally:
            server.engine.kill()
