"""What the server knows about an HTTP request at its end: for the log, the metrics and traces."""

from __future__ import annotations

import re
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Literal

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.routing import Match
from starlette.types import Scope

from ostro.core.routes import Route
from ostro.entrypoints.operations.access.caller import Caller

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
OTHER = "other"
"""The label of a method or a route that the server does not have."""
REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
"""Request ids of clients that the server keeps."""
TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")
"""Values of the header traceparent (W3C Trace Context): trace id and parent id."""


@dataclass(slots=True, eq=False)
class RequestRecord:
    """An HTTP request and its response.

    id           that of the header x-request-id, or a new one
    traceparent  the valid header, "" without one
    begun        `time.monotonic()` at its arrival; `started` is the time since 1970
    status       of the response; 0 if there is none
    model        the model of its last request to an engine; `adapters` are their names
    queue        seconds in the queue of the engine; `first_token` and `total` since its arrival
    finish       the last finish reason of its requests to engines, "" without any
    error        the code of an error response
    bytes_in     of the body as far as it was read; `bytes_out` of the body of the response
    disconnected whether the client closed the connection before the end of the response
    """

    scope: Scope
    id: str
    traceparent: str
    begun: float = field(default_factory=time.monotonic)
    started: float = field(default_factory=time.time)
    status: int = 0
    model: str = ""
    adapters: tuple[str, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    queue: float | None = None
    first_token: float | None = None
    total: float = 0.0
    finish: Literal["", "stop", "length", "abort", "error"] = ""
    error: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    complete: bool = False
    disconnected: bool = False

    @classmethod
    def of(cls, scope: Scope) -> RequestRecord:
        """Begin the record of a request."""
        headers = Headers(scope=scope)
        id, parent = headers.get("x-request-id", ""), headers.get("traceparent", "")
        return cls(
            scope,
            id if REQUEST_ID.fullmatch(id) else token_hex(12),
            parent if TRACEPARENT.fullmatch(parent) else "",
        )

    @property
    def caller(self) -> str:
        """The name of the API key, "" without one."""
        caller: Caller | None = self.scope.get("state", {}).get("caller")
        return "" if caller is None else caller.name

    @property
    def method(self) -> str:
        """The method; "other" for one that HTTP does not define."""
        method = self.scope.get("method", "WEBSOCKET")
        return method if method in METHODS or self.scope["type"] == "websocket" else OTHER

    @property
    def route(self) -> str:
        """The path template of the route, also of a request that was rejected before routing."""
        if (route := self.scope.get("route")) is not None:
            return str(getattr(route, "path", OTHER))
        record = record_of(self.scope)
        return OTHER if record is None else record.name.partition(" ")[2]

    def base_url(self) -> str:
        """The URL of the server as the client addressed it, with a slash at its end."""
        return str(HTTPConnection(self.scope).base_url)

    @property
    def trace_id(self) -> str:
        """The trace id of the client, "" without one."""
        return self.traceparent[3:35]


RECORD: ContextVar[RequestRecord | None] = ContextVar("RECORD", default=None)
"""The record of the HTTP request that the running task handles."""


def record_of(scope: Scope) -> Route | None:
    """The record of a request's route; None for an unknown path."""
    route = scope.get("route")
    if route is None and "app" in scope:  # an error before routing
        routes = scope["app"].routes
        route = next((each for each in routes if each.matches(scope)[0] is not Match.NONE), None)
    return getattr(route, "record", None)
