"""The JSON of errors in OpenAI's form: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import msgspec

from ostro.core.errors import EngineDied, OstroError, StoreError
from ostro.core.plugins.task_errors import task_errors
from ostro.core.routes import Route

log = logging.getLogger(__name__)
BUSY = (429, 503, 529)
"""Statuses of a limit or a server without room: a repetition may succeed. 529 is Anthropic's."""
DIED = "the engine process has ended; see the server's log"
ErrorForm = Callable[[int, str, str | None, str | None], Any]
"""Converts (status, message, code, param) to the JSON of an error."""
ADDRESS = re.compile(r" at 0x[0-9a-f]+\b", re.IGNORECASE)
"""A heap address, as the default repr of an object has it."""


class ErrorDetail(msgspec.Struct, kw_only=True):
    """What failed. `param` names the field of the request, `code` the kind of error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, kw_only=True):
    """The JSON of an error response."""

    error: ErrorDetail


def error_content(
    status: int, message: str, code: str | None, param: str | None = None
) -> ErrorBody:
    """The error object. Heap addresses, which help an attacker, are removed from the message."""
    message = ADDRESS.sub("", message)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    if status == 401:
        kind = "authentication_error"
    return ErrorBody(error=ErrorDetail(message=message, type=kind, param=param, code=code))


def error_content_of(error: OstroError) -> ErrorBody:
    """The error object of an OstroError.

    The cause of an EngineDied and the folder of a store are left to the log.
    """
    message = str(error)
    if isinstance(error, EngineDied):
        message = DIED
    elif isinstance(error, StoreError):
        message = error.reason
    return error_content(error.status, message, error.code, error.param)


def internal_error(id: str) -> ErrorBody:
    """The error object of an unexpected exception; its traceback goes to the log only."""
    return error_content(500, f"internal error; see the server's log for request {id}", "internal")


def in_form(route: Route | None, status: int, content: ErrorBody) -> tuple[int, Any]:
    """The status and the JSON of an error in the form of a route's API family.

    In OpenAI's form if the function of a plugin raises; the log has its traceback.
    """
    if route is None or route.errors is None:
        return status, content
    detail, status = content.error, route.statuses.get(status, status)
    try:
        with task_errors():
            return status, route.errors(status, detail.message, detail.code, detail.param)
    except Exception:
        log.exception("`errors` of the route %r has failed", route.name)
        return status, content
