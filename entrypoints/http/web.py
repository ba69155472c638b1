"""The web server: uvicorn's, with limits and a certificate that can be replaced."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from ostro.entrypoints.http.listener import BACKLOG, Protocol

FLUSH_SECONDS = 5
"""Time limit for clients to read finished responses at shutdown."""
KEEP_ALIVE_SECONDS = 30
ACCEPTS = 2048
"""Connections that are accepted at once, unless other processes accept from the same socket."""
TICK_SECONDS = 1.0
"""Seconds after which the server updates the date of its responses."""


class Web(uvicorn.Server):
    """uvicorn's server with limits; it handles no signals and configures no logging."""

    @classmethod
    def of(
        cls,
        app: FastAPI,
        certfile: str | Path | None = None,
        keyfile: str | Path | None = None,
        *,
        accepts: int = ACCEPTS,
        trusted_proxies: Sequence[str] = (),
    ) -> Web:
        """Return a server of an application that is not running yet. certfile: of TLS, in PEM.

        accepts: connections that it accepts at once. trusted_proxies: those of `parse_proxies`.
        """
        logging.getLogger("uvicorn.error").addFilter(is_no_cancellation)
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            ssl_certfile=certfile,
            ssl_keyfile=keyfile,
            server_header=False,
            # uvicorn's default trusts all clients of this machine.
            proxy_headers=bool(trusted_proxies),
            forwarded_allow_ips=[*trusted_proxies],
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=FLUSH_SECONDS,
            backlog=accepts,
        )
        config.load()  # reads the certificate, which `use` may replace from now on
        return cls(config)

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopped = asyncio.Event()

    def stop(self) -> None:
        """Accept no more connections, and end once the open ones are idle."""
        self.should_exit = True
        self.stopped.set()

    async def main_loop(self) -> None:
        """Wait for `stop`. uvicorn's loop polls ten times a second, which costs an idle CPU."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self.stopped.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on listening sockets."""
        await super().startup(sockets)
        # asyncio has taken the number of connections to accept at once as the length of the queue.
        if self.config.backlog < BACKLOG:
            for each in sockets or ():
                each.listen(BACKLOG)

    def use(self, certificate: ssl.SSLContext) -> None:
        """Serve new connections with another certificate."""

        # A certificate loaded into the first context would not replace one of another kind of key.
        def select(connection: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
            connection.context = certificate

        assert self.config.ssl is not None
        self.config.ssl.sni_callback = select

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not capture signals: `Server` installs the handlers."""
        yield


def is_no_cancellation(record: logging.LogRecord) -> bool:
    """Return whether a record is not about a request that the server cancelled at its exit."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))
