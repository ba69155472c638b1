"""Runs requests of batches and of other jobs with the permissions of their key."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager
from typing import Any

import msgspec

from ostro.core.errors import OstroError, StepFailed, Unsupported
from ostro.core.plugins.task_errors import task_errors
from ostro.core.routes import Content, RequestBody, Route
from ostro.core.store import new_id
from ostro.entrypoints.operations.access.admission import claim
from ostro.entrypoints.operations.access.caller import Caller, Forbidden
from ostro.entrypoints.operations.access.keys import KeyRing
from ostro.entrypoints.operations.access.quotas import Quota, Quotas, RequestTooLarge
from ostro.entrypoints.operations.documents.batch_runner import Busy, Execute
from ostro.entrypoints.operations.documents.store_limits import StoreLimitReached
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.requests.decoding import decode_aside, max_bytes
from ostro.entrypoints.operations.requests.errors import (
    BUSY,
    ErrorBody,
    error_content,
    error_content_of,
    in_form,
    internal_error,
)
from ostro.entrypoints.operations.requests.handler import call
from ostro.entrypoints.operations.requests.ignored import ignoring
from ostro.entrypoints.operations.requests.request_context import REQUEST_ID

log = logging.getLogger(__name__)
FINAL = (StepFailed, StoreLimitReached)
"""Errors that a repetition is likely to meet again."""
LOW_PRIORITY = 1000
"""Priority of the requests of jobs: behind all others."""
Acting = Callable[[str], AbstractContextManager[Caller]]
"""Returns a context in which a request of the caller of this name runs, with the permissions and
limits that the caller has now. Raises an OstroError for a caller whose key is no longer valid.
"""


def make_executor(
    routes: Sequence[Route], operations: Operations, ring: KeyRing, quotas: Quotas
) -> Execute:
    """Return the function that runs the requests of batches by the handlers of their routes.

    They have the permissions and limits that the key has when they run, and a low priority. The
    routes include those of plugins, so that plugins can have batches of their own.
    """
    handled = handled_by(routes)

    async def execute(path: str, body: bytes | msgspec.Raw, name: str) -> tuple[int, bytes]:
        route = handled.get(f"POST {path}")
        id = new_id("")
        token = REQUEST_ID.set(id)
        try:
            if (named := ring.named(name)) is None:
                message = f"the API key {name!r} of the batch is no longer valid"
                return failure(route, 401, error_content(401, message, "invalid_api_key"))
            if route is None:
                message = f"a batch cannot contain requests of {path:.200}"
                return failure(None, 404, error_content(404, message, "unknown_url"))
            caller, key = named
            return 200, await run(route, bytes(body), operations, low(caller), quotas.of(name, key))
        except OstroError as error:
            if error.status in BUSY and not isinstance(error, FINAL):
                raise Busy(getattr(error, "retry_after", None)) from error
            return failure(route, error.status, error_content_of(error))
        except Exception:
            log.exception("a request of a batch has failed")
            return failure(route, 500, internal_error(id))
        finally:
            REQUEST_ID.reset(token)

    return execute


def make_max_body(routes: Sequence[Route], operations: Operations) -> Callable[[str], int]:
    """Return the function that gives the limit on the bytes of the body of a path."""
    handled = handled_by(routes)

    def limit(path: str) -> int:
        route = handled.get(f"POST {path}")
        options = RequestBody() if route is None or route.body is None else route.body
        return max_bytes(operations.service, options)

    return limit


def handled_by(routes: Sequence[Route]) -> dict[str, Route]:
    """Return the routes whose requests a batch can contain, by name: their requests are JSON."""
    able = (route for route in routes if route.handler and not route.header and not route.is_form)
    return {route.name: route for route in able}


async def run(
    route: Route, data: bytes, operations: Operations, caller: Caller, quota: Quota
) -> bytes:
    """Return the JSON of the response to a request, which counts towards the limits of its key.

    Raises as the handler, and RequestError or RequestTooLarge for a malformed body.
    """
    place = f"the route {route.name!r}"
    caller.require(route.scope)
    with claim(caller, quota, route.name.partition(" ")[2]) as own:
        try:
            with ignoring(operations.strict_fields):
                with task_errors(place):
                    if route.requires is not None:
                        route.requires(operations)
                    request = await read(route, data, operations)
                response = await call(route, operations, caller, request, {}, place)
        except OstroError as error:
            if error.status in BUSY:
                own.give_back()
            raise
    if isinstance(response, AsyncGenerator):
        with task_errors(place):
            async with aclosing(response):
                await anext(response, None)  # a generator that has not begun would release nothing
    if isinstance(response, AsyncGenerator | Content):
        raise Unsupported("a request of a batch must be answered with JSON", param="stream")
    return msgspec.json.encode(response)


async def read(route: Route, data: bytes, operations: Operations) -> Any:
    """Return the request of a route in JSON. Raises as `decode`, and RequestTooLarge."""
    options = route.body or RequestBody()
    limit = max_bytes(operations.service, options)
    if len(data) > limit:
        raise RequestTooLarge(f"the body exceeds {limit} bytes")
    if route.kind is None:
        return None
    return await decode_aside(data, route.kind, options.check)


def failure(route: Route | None, status: int, content: ErrorBody) -> tuple[int, bytes]:
    """Return the status and the JSON of an error in the form of a route."""
    status, body = in_form(route, status, content)
    return status, msgspec.json.encode(body)


def make_acting(ring: KeyRing, quotas: Quotas, path: str) -> Acting:
    """Return the function that gives the requests of a job the caller of a name.

    They have the low priority of batches, and count towards the limits as requests of `path`.
    """

    @contextmanager
    def acting(name: str) -> Iterator[Caller]:
        if (named := ring.named(name)) is None:
            raise Forbidden(f"the API key {name!r} is no longer valid")
        caller, key = low(named[0]), named[1]
        caller.require("infer")
        with claim(caller, quotas.of(name, key), path):
            yield caller

    return acting


def low(caller: Caller) -> Caller:
    """Return a caller whose requests run behind those of all others."""
    return msgspec.structs.replace(caller, priority=max(LOW_PRIORITY, caller.priority or 0))
