"""Answers HTTP requests by the handlers of their routes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ostro.core.errors import OstroError
from ostro.core.plugins.task_errors import task_errors
from ostro.core.routes import Content, Endpoint, Route
from ostro.entrypoints.http.body import DEFAULT, read_form, read_request
from ostro.entrypoints.http.context import caller_of, operations_of
from ostro.entrypoints.http.errors import respond, status_headers
from ostro.entrypoints.http.forms import MAX_FILES, parse_form
from ostro.entrypoints.http.query import parse_query
from ostro.entrypoints.http.stream import EventStream, guarded_parts, unless_disconnected
from ostro.entrypoints.operations.requests.errors import error_content_of, in_form
from ostro.entrypoints.operations.requests.event_formats import OPENAI_EVENTS
from ostro.entrypoints.operations.requests.handler import call
from ostro.entrypoints.operations.requests.ignored import ignoring

WITH_QUERY = ("GET", "DELETE")
"""Methods whose request is the query string."""


def endpoint_of(route: Route, place: str = "") -> Endpoint:
    """Return an endpoint that reads a request, calls the route's handler and writes its result.

    place: the route and its plugin, for the log.
    """
    assert route.handler is not None
    query = cast("type[msgspec.Struct] | None", route.query)
    place = place or f"the route {route.name!r}"

    async def endpoint(request: Request) -> Response:
        operations = operations_of(request)
        with task_errors(place), ignoring(operations.strict_fields) as request.state.ignored:
            if route.requires is not None:  # before a body of up to 50 MB is read in vain
                route.requires(operations)
            parameters: dict[str, Any] = dict(request.path_params)
            if query is not None:
                parameters["query"] = parse_query(request, query)
            async with reading(request, route) as decoded:
                work = call(route, operations, caller_of(request), decoded, parameters, place)
                if route.is_cancelled_on_disconnect:
                    work = unless_disconnected(request, work)
                return respond_with(await work, route, place)

    return endpoint


def checked_endpoint(endpoint: Endpoint, place: str) -> Endpoint:
    """Return the endpoint of a plugin's route, with ordinary errors; see `task_errors`."""

    async def checked(request: Request) -> Response:
        strict = operations_of(request).strict_fields
        with task_errors(place), ignoring(strict) as request.state.ignored:
            response = await endpoint(request)
        if isinstance(response, StreamingResponse):
            parts = cast("AsyncIterator[bytes]", aiter(response.body_iterator))
            response.body_iterator = guarded_parts(parts, place)
        return response

    return checked


@asynccontextmanager
async def reading(request: Request, route: Route) -> AsyncIterator[Any]:
    """Yield the request in the query string or the body, None for a route without one.

    The files of a form are closed at the end.
    """
    kind, body = route.kind, route.body or DEFAULT
    if kind is None:
        yield None
    elif not has_body(route):
        yield parse_query(request, kind)
    elif route.is_form:
        async with read_form(request, MAX_FILES, body.max_bytes) as form:
            yield parse_form(form, kind)
    else:
        yield await read_request(request, kind, body)


def has_body(route: Route) -> bool:
    """Return whether the requests of a route with a handler have a body that is read."""
    return route.kind is not None and not route.name.startswith(WITH_QUERY)


def respond_with(result: Any, route: Route, place: str = "") -> Response:
    """Return the response with the result of a handler. Raises TypeError for invalid content.

    place: the route and its plugin, for the log.
    """
    if isinstance(result, AsyncGenerator):
        format = route.event_format or OPENAI_EVENTS
        return EventStream(result, format, partial(error_json, route), place)
    if not isinstance(result, Content):
        return respond(200, result)
    headers = {**status_headers(result.status), **result.headers}
    if isinstance(result.data, bytes):
        return Response(result.data, result.status, headers, result.media_type)
    if not isinstance(result.data, AsyncIterator):
        kind = type(result.data).__name__
        raise TypeError(f"Content.data is {kind}, expected bytes or an async iterator of bytes")
    parts = guarded_parts(result.data, place)
    return StreamingResponse(parts, result.status, headers, result.media_type)


def error_json(route: Route, error: OstroError) -> Any:
    """Return the JSON of an error in the form of a route."""
    return in_form(route, error.status, error_content_of(error))[1]
