"""Routes of HTTP APIs, as plugins and the built-in API families declare them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from ostro.core.errors import PluginError
from ostro.core.records import Record

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


Scope = Literal["open", "infer", "admin", "metrics"]
"""The permission that a route requires of an API key; "open" routes require no key."""

RouteHandler = Callable[..., Awaitable[Any]]
"""A `Handler`."""

RouteEndpoint = Callable[..., Any] | Path
"""An `Endpoint`, or a folder of static files."""

FORM = "multipart/form-data"
"""`media_type` of the types of requests that are forms."""


@dataclass(frozen=True, kw_only=True)
class RequestBody:
    """How a route with a handler reads its requests: the JSON or the form, or the query string.

    kind        the msgspec type to decode, if it is not the documented `Route.request`
    max_inputs  the most prompts or texts; the limit on the bytes grows with it and the context
    max_bytes   the limit on the bytes in place of that one, or in place of 512 MiB for a form
    check       called with the JSON of a body that the type rejects; it may raise a better error
    any_type    accept other content types, which `curl -d` sends, except from browsers
    """

    kind: type[Any] | None = None
    max_inputs: int = 1
    max_bytes: int | None = None
    check: Callable[[Mapping[str, Any]], None] | None = None
    any_type: bool = False


@dataclass(frozen=True, kw_only=True)
class EventFormat:
    """How the events of a streamed response are written.

    encode      the bytes of an event, or of an error in the form of the route's errors
    end         the bytes after the last event
    keep_alive  bytes that are sent during long pauses; empty for formats without comments
    """

    encode: Callable[[Any], bytes]
    end: bytes = b""
    keep_alive: bytes = b": keep-alive\n\n"
    media_type: str = "text/event-stream; charset=utf-8"


@dataclass(frozen=True, kw_only=True)
class Content:
    """A response that is not JSON, or has another status than 200: its bytes or their parts."""

    data: bytes | AsyncIterator[bytes]
    media_type: str = "application/json"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Route(Record):
    """A route: `name` is "METHOD /path", "WEBSOCKET /path", or "FILES /path" for static files.

    Either `handler` or `endpoint` answers its requests.

    handler   a `Handler`: it needs no web framework, and batches may contain its requests
    endpoint  an async function of a Starlette request or WebSocket; the folder of static files
    scope     the permission that it requires
    request   the msgspec type of the request: of the query string for GET and DELETE, otherwise of
              the body. It is JSON, or a form if the type has `media_type = FORM`; the fields
              of a form with the type `UploadedFile` or a list of them are its files
    query     the msgspec type of the query string of a handler's request that has a body too
    body      how a handler's request is read, if not with the defaults of `RequestBody`
    requires  `requires(operations)` raises an error if the server lacks what the handler needs; the
              body is not read then
    response  the msgspec type of the response's JSON, or the media types of another response
    events    the msgspec type of the events of a streamed response
    event_format  how these events are written; None: as JSON in server-sent events that end with
              [DONE], as OpenAI's
    cancel_on_disconnect  whether the handler is cancelled when the client leaves; None: True, but
              False for DELETE and, with the scope admin, for all methods but GET
    errors    converts (status, message, code, param) to the JSON of an error, whose type is its
              annotation; None: OpenAI's form
    example   an example of the request, for the OpenAPI document
    statuses  statuses of errors that differ from OpenAI's, by OpenAI's status: {503: 529}
    error_statuses  OpenAI's statuses of its errors, for the OpenAPI document, besides those that
              all routes have (401, 403, 429, 500) and those of bodies (408, 413, 415)
    header    a header, in lower case: the route answers requests that carry it only, and takes
              precedence over routes of the same path
    """

    handler: RouteHandler | None = None
    endpoint: RouteEndpoint | None = None
    scope: Scope = "infer"
    request: object | None = None
    query: object | None = None
    body: RequestBody | None = None
    requires: Callable[[Any], None] | None = None
    response: object | None = None
    events: object | None = None
    event_format: EventFormat | None = None
    cancel_on_disconnect: bool | None = None
    errors: Callable[[int, str, str | None, str | None], Any] | None = None
    example: Mapping[str, Any] | None = None
    statuses: Mapping[int, int] = field(default_factory=dict)
    error_statuses: tuple[int, ...] = (400, 404, 503)
    header: str | None = None

    def __post_init__(self) -> None:
        if (self.handler is None) == (self.endpoint is None):
            raise PluginError(f"the route {self.name!r} needs either a handler or an endpoint")
        names = ("query", "body", "requires", "cancel_on_disconnect")
        stated = [name for name in names if getattr(self, name) is not None]
        if self.handler is None and stated:
            raise PluginError(
                f"the route {self.name!r} has an endpoint, which reads its requests itself: "
                f"{', '.join(stated)} need a handler"
            )
        body = self.body or RequestBody()
        if self.is_form and (body.max_inputs, body.check, body.any_type) != (1, None, False):
            raise PluginError(
                f"the route {self.name!r} reads a form: max_inputs, check and any_type need JSON"
            )

    @property
    def kind(self) -> type[Any] | None:
        """The type to which a handler's requests are decoded, None for requests without one."""
        own = None if self.body is None else self.body.kind
        return own or cast("type[Any] | None", self.request)

    @property
    def is_form(self) -> bool:
        """Whether the requests are forms."""
        return getattr(self.kind, "media_type", None) == FORM

    @property
    def is_cancelled_on_disconnect(self) -> bool:
        """The value of `cancel_on_disconnect`, or its default."""
        if self.cancel_on_disconnect is not None:
            return self.cancel_on_disconnect
        method = self.name.partition(" ")[0]
        return method == "GET" or (method != "DELETE" and self.scope != "admin")


class Handler(Protocol):
    """`Route.handler`: answers a request of a caller.

    It gets the `Operations` of the server, the `Caller`, and the request, None for a route without
    one; by name the parameters of the path, and `query` for a route with this type. It returns an
    object that is sent as JSON, an async generator of events, or a `Content`.
    """

    def __call__(
        self, operations: Any, caller: Any, request: Any, /, **parameters: Any
    ) -> Awaitable[Any]: ...


class Endpoint(Protocol):
    """`Route.endpoint`: an endpoint of Starlette."""

    def __call__(self, request: Request, /) -> Awaitable[Response]: ...
