"""Error responses, in the form of the API family of their route."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from ostro.core.errors import OstroError
from ostro.entrypoints.http.request_record import RECORD, record_of
from ostro.entrypoints.operations.requests.errors import (
    BUSY,
    ErrorBody,
    error_content,
    error_content_of,
    in_form,
    internal_error,
)

CODES = {
    401: "invalid_api_key",
    403: "forbidden",
    404: "unknown_url",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    415: "unsupported_media_type",
    431: "headers_too_large",
    503: "overloaded",
}
CLOSE = {"connection": "close"}
"""Headers of a response to a request whose body is not read to its end."""
RETRY_SECONDS = "1"


def respond(status: int, content: Any, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response of a struct or plain data, with the headers that its status needs."""
    extra = status_headers(status) | dict(headers or {})
    return Response(msgspec.json.encode(content), status, extra, "application/json")


def status_headers(status: int) -> dict[str, str]:
    """The headers that a response needs for its status."""
    if status in BUSY:
        return {"retry-after": RETRY_SECONDS}
    return {"www-authenticate": "Bearer"} if status == 401 else {}


def respond_to(error: OstroError, scope: Scope | None = None) -> Response:
    """The response to an OstroError, in the form of the API family of a request's scope.

    `retry_after` of the error, in seconds, becomes a header.
    """
    seconds = getattr(error, "retry_after", None)
    headers = {} if seconds is None else {"retry-after": str(max(1, ceil(seconds)))}
    return respond_error(error.status, error_content_of(error), scope, headers)


def respond_error(
    status: int,
    content: ErrorBody,
    scope: Scope | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """An error response, in the form of the API family of a request's scope."""
    if (served := RECORD.get()) is not None:
        served.error = content.error.code or str(status)
    record = None if scope is None else record_of(scope)
    status, body = in_form(record, status, content)
    return respond(status, body, headers)


async def on_ostro(request: Request, error: Exception) -> Response:
    """Respond to an OstroError."""
    assert isinstance(error, OstroError)
    return respond_to(error, request.scope)


async def on_http(request: Request, error: Exception) -> Response:
    """Respond to an HTTPException of the router or of a route."""
    assert isinstance(error, HTTPException)
    message, status, headers = error.detail, error.status_code, error.headers
    if status == 405 and ":path}" in getattr(request.scope.get("route"), "path", ""):
        # The route matches any path below it, so the path says nothing about the method.
        status, headers = 404, None
    if status == 404:
        message = f"unknown route: {request.method} {request.url.path:.200}; /docs lists all routes"
    elif status == 405:
        headers = {"Allow": allowed_methods(request)}
        message = f"{request.url.path:.200} does not accept {request.method}; use "
        message += headers["Allow"]
    content = error_content(status, message, CODES.get(status))
    return respond_error(status, content, request.scope, headers)


def allowed_methods(request: Request) -> str:
    """Return the methods of all routes of a request's path, as the header Allow lists them."""
    routes = [r for r in request.app.routes if r.matches(request.scope)[0] is Match.PARTIAL]
    return ", ".join(sorted({method for route in routes for method in route.methods}))


class InternalError(OstroError):
    """An unexpected error of a handler that a stream reports; its traceback is in the log only."""

    status, code = 500, "internal"

    def __init__(self, id: str) -> None:
        super().__init__(internal_error(id).error.message)


async def on_bug(request: Request, error: Exception) -> Response:
    """Respond to an unexpected exception; its traceback goes to the log only."""
    return respond_error(500, internal_error(request_id(request.scope)), request.scope)


def request_id(scope: Scope) -> str:
    """The id of a request, as its response and the log have it."""
    id: str = scope.get("state", {}).get("request_id", "")
    return id


async def on_disconnect(request: Request, error: Exception) -> Response:
    """Respond to a request whose client has disconnected."""
    return Response(status_code=499)


HANDLERS: Mapping[Any, Any] = {
    OstroError: on_ostro,
    HTTPException: on_http,
    ClientDisconnect: on_disconnect,
    Exception: on_bug,
}
