"""Errors as OpenAI's API words them: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ostro.core.errors import EngineDied, OstroError

CODES = {
    401: "invalid_api_key",
    403: "forbidden",
    404: "unknown_url",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    415: "unsupported_media_type",
    431: "headers_too_large",
}
RETRY_SECONDS = "1"
DIED = "the engine is gone; the server's log says why"


def body(status: int, message: str, code: str | None, param: str | None = None) -> dict[str, Any]:
    """The error object."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    if status == 401:
        kind = "authentication_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def body_of(error: OstroError) -> dict[str, Any]:
    """The error object of one of ours. Why an engine has died is for the log, not for clients."""
    message = DIED if isinstance(error, EngineDied) else str(error)
    return body(error.status, message, error.code, error.param)


def respond(
    status: int, content: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    """JSON, with Retry-After where trying again may help."""
    extra = dict(headers or {})
    if status in (429, 503):
        extra["retry-after"] = RETRY_SECONDS
    return Response(msgspec.json.encode(content), status, extra, "application/json")


def respond_to(error: OstroError) -> Response:
    """The response to one of our errors."""
    return respond(error.status, body_of(error))


async def on_ostro(request: Request, error: Exception) -> Response:
    """Answer an error that is meant for people."""
    assert isinstance(error, OstroError)
    return respond_to(error)


async def on_http(request: Request, error: Exception) -> Response:
    """Answer what the routing, or a route, refuses by status."""
    assert isinstance(error, HTTPException)
    message = error.detail
    if error.status_code == 404:
        message = f"there is no {request.method} {request.url.path:.200}"
    elif error.status_code == 405:
        message = f"{request.url.path:.200} does not take {request.method}"
    content = body(error.status_code, message, CODES.get(error.status_code))
    return respond(error.status_code, content, error.headers)


async def on_bug(request: Request, error: Exception) -> Response:
    """Answer what nobody foresaw; the traceback goes to the log, not to the client."""
    id = request.scope.get("state", {}).get("request_id", "")
    return respond(500, body(500, f"internal error; see the server's log for {id}", "internal"))


async def on_gone(request: Request, error: Exception) -> Response:
    """End a request whose client is gone; nobody reads this."""
    return Response(status_code=499)


HANDLERS: Mapping[Any, Any] = {
    OstroError: on_ostro,
    HTTPException: on_http,
    ClientDisconnect: on_gone,
    Exception: on_bug,
}
