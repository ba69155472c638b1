"""Answers HTTP requests by the handlers of their routes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ostro.core.errors import OstroError
from ostro.core.records import Content, Endpoint, RequestBody, Route
from ostro.entrypoints.http.body import read_request
from ostro.entrypoints.http.context import caller_of, operations_of
from ostro.entrypoints.http.errors import respond, status_headers
from ostro.entrypoints.http.query import parse_query
from ostro.entrypoints.http.stream import EventStream, unless_disconnected
from ostro.entrypoints.operations.errors import error_content_of, in_form
from ostro.entrypoints.operations.event_formats import OPENAI_EVENTS

WITH_QUERY = ("GET", "DELETE")
"""Methods whose request is the query string."""


def endpoint_of(route: Route) -> Endpoint:
    """Return an endpoint that reads a request, calls the route's handler and writes its result."""
    assert route.handler is not None
    handler, query = route.handler, cast("type[msgspec.Struct] | None", route.query)

    async def endpoint(request: Request) -> Response:
        operations = operations_of(request)
        if route.requires is not None:  # before a body of up to 50 MB is read in vain
            route.requires(operations)
        parameters: dict[str, Any] = dict(request.path_params)
        if query is not None:
            parameters["query"] = parse_query(request, query)
        wanted = await read(request, route)
        work = handler(operations, caller_of(request), wanted, **parameters)
        if route.cancel_on_disconnect:
            return respond_with(await unless_disconnected(request, work), route)
        return respond_with(await work, route)

    return endpoint


async def read(request: Request, route: Route) -> Any:
    """Return the request in the query string or the body, None for a route without one."""
    body = route.body or RequestBody()
    kind = cast("type[msgspec.Struct] | None", body.kind or route.request)
    if kind is None:
        return None
    if route.name.startswith(WITH_QUERY):
        return parse_query(request, kind)
    return await read_request(request, kind, body)


def respond_with(result: Any, route: Route) -> Response:
    """Return the response with the result of a handler."""
    if isinstance(result, AsyncGenerator):
        return EventStream(result, route.event_format or OPENAI_EVENTS, partial(error_json, route))
    if not isinstance(result, Content):
        return respond(200, result)
    headers = {**status_headers(result.status), **result.headers}
    if isinstance(result.data, bytes):
        return Response(result.data, result.status, headers, result.media_type)
    return StreamingResponse(result.data, result.status, headers, result.media_type)


def error_json(route: Route, error: OstroError) -> Any:
    """Return the JSON of an error in the form of a route."""
    return in_form(route, error.status, error_content_of(error))[1]
