"""The HTTP application: the routes of all API families, and the middleware."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount, WebSocketRoute
from starlette.routing import Route as HttpRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from ostro.core.errors import OstroError
from ostro.core.plugins.manager import ROUTES_NOTE, PluginManager
from ostro.core.routes import Endpoint, Route
from ostro.entrypoints.api.openai import (
    batches,
    embeddings,
    files,
    images,
    models,
    speech,
    stored_chats,
    text,
    tokens,
    transcriptions,
)
from ostro.entrypoints.api.openai.responses import conversation_routes
from ostro.entrypoints.api.openai.responses import routes as response_routes
from ostro.entrypoints.api.openai.store import add_stores
from ostro.entrypoints.api.openai.types import ADAPTERS_HEADER
from ostro.entrypoints.api.server import adapters as server_adapters
from ostro.entrypoints.api.server import health
from ostro.entrypoints.api.server import models as server_models
from ostro.entrypoints.http import metrics, openapi
from ostro.entrypoints.http.base_url import BaseUrl
from ostro.entrypoints.http.body_log import BodyLog, BodyLogMiddleware
from ostro.entrypoints.http.budget import BodyBudget
from ostro.entrypoints.http.context import caller_of
from ostro.entrypoints.http.deadline import Deadline
from ostro.entrypoints.http.errors import HANDLERS
from ostro.entrypoints.http.handlers import checked_endpoint, endpoint_of
from ostro.entrypoints.http.log import log_request
from ostro.entrypoints.http.measurement import RequestMetrics
from ostro.entrypoints.http.metrics import CallerMetrics, EngineMetrics
from ostro.entrypoints.http.middleware import (
    POLICY_VIOLATION,
    AccessMiddleware,
    Observer,
    RequestMiddleware,
)
from ostro.entrypoints.http.options import Options
from ostro.entrypoints.http.root_path import RootPath
from ostro.entrypoints.operations.access.admin import Admin
from ostro.entrypoints.operations.access.keys import KeyRing
from ostro.entrypoints.operations.access.quotas import Quotas
from ostro.entrypoints.operations.documents.documents import Documents
from ostro.entrypoints.operations.documents.state import State
from ostro.entrypoints.operations.executor import make_acting, make_executor, make_max_body
from ostro.entrypoints.operations.models.service import Service
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.requests.ignored import HEADER as IGNORED_HEADER

log = logging.getLogger(__name__)
FAMILIES = (
    health,
    server_models,  # before the route of any model's name
    text,
    models,
    tokens,
    stored_chats,
    response_routes,
    conversation_routes,
    embeddings,
    transcriptions,
    images,
    speech,
    files,
    batches,
    server_adapters,
    metrics,
    openapi,
)
"""The modules of the built-in routes, one API family each: `ROUTES`."""


def make_app(
    service: Service,
    plugins: PluginManager,
    options: Options,
    *,
    ring: KeyRing | None = None,
    state: State | None = None,
    adapter_root: str | Path | None = None,
    observers: Sequence[Observer] = (),
    body_log: BodyLog | None = None,
    quotas: Quotas | None = None,
    forwarding: Callable[[Route], Endpoint | None] | None = None,
    body_counts: memoryview | None = None,
    own_count: int = 0,
) -> FastAPI:
    """Return the application.

    ring: the API keys, None for a server without keys. state: the store of files and batches, None
    for a server without one. adapter_root: folder that clients may load adapters from. observers:
    functions that get the record of each request at its end. body_log: gets the bodies of requests.
    quotas: those of another process. forwarding: returns the endpoint of a route that another
    process handles, None for other routes. body_counts, own_count: those of `BodyBudget`.
    Raises UsageError if a root is not a folder.
    """
    ring, quotas, state = ring or KeyRing(), quotas or Quotas(), state or State()
    operations = Operations(
        service,
        Admin.of(adapter_root, ring),
        Admin.of(options.model_root, ring, "--model-root"),
        strict_fields=options.strict_fields,
    )
    routes = built_in_routes()
    routes += plugin_routes(plugins, server=operations, engine=service.engine)
    add_documents(operations, state, routes, ring, quotas)
    requests = RequestMetrics(service.name, lambda: service.names)
    requests.registry.register(CallerMetrics(quotas))
    service.engine.observer = requests
    service.hides_names = ring.locked
    app = FastAPI(
        openapi_url=None,
        routes=starlette_routes(routes, plugins, forwarding),
        middleware=[
            *outer_middleware(options, requests, observers),
            Middleware(BodyBudget, counts=body_counts, own=own_count),
            *([Middleware(BodyLogMiddleware, log=body_log)] if body_log is not None else []),
            *inner_middleware(options, ring, quotas, routes),
        ],
        exception_handlers=dict(HANDLERS),
        redirect_slashes=False,
    )
    app.state.operations, app.state.routes = operations, routes
    app.state.root_path, app.state.quotas = options.root_path, quotas
    app.state.metrics = EngineMetrics(service, requests, state)
    return app


def outer_middleware(
    options: Options, requests: RequestMetrics, observers: Sequence[Observer]
) -> list[Middleware]:
    """Return the outer middleware, which sees every request: its path, metrics and log."""
    if options.access_log:
        observers = [*observers, log_request]
    measure = Middleware(RequestMiddleware, metrics=requests, observers=observers)
    middleware = [Middleware(BaseUrl), measure]
    if options.root_path:
        middleware.insert(0, Middleware(RootPath, root_path=options.root_path))
    return middleware


def inner_middleware(
    options: Options, ring: KeyRing, quotas: Quotas, routes: Sequence[Route]
) -> list[Middleware]:
    """Return the inner middleware, which decides what a client may do, and for how long."""
    middleware = []
    if options.cors_origins:
        allow: dict[str, Any] = {"allow_methods": ["*"], "allow_headers": ["*"]}
        allow["expose_headers"] = [ADAPTERS_HEADER, IGNORED_HEADER]
        origins = list(options.cors_origins)
        middleware.append(Middleware(CORSMiddleware, allow_origins=origins, **allow))
    paths = open_paths(routes) | ({"/metrics"} if options.open_metrics else set())
    hosts = None if ring.locked else options.allow_hosts
    access = Middleware(AccessMiddleware, ring=ring, quotas=quotas, hosts=hosts, open_paths=paths)
    middleware.append(access)
    if options.request_timeout is not None:
        middleware.append(Middleware(Deadline, seconds=options.request_timeout))
    return middleware


def add_documents(
    operations: Operations, state: State, routes: Sequence[Route], ring: KeyRing, quotas: Quotas
) -> None:
    """Give operations their documents, whose batches and responses call the operations."""
    state.limits.key_of = ring.key_of
    operations.documents = Documents(
        state,
        operations.service,
        make_executor(routes, operations, ring, quotas),
        make_max_body(routes, operations),
        ring.knows,
    )
    add_stores(operations, make_acting(ring, quotas, response_routes.PATH))
    operations.files = operations.documents.files


def describe(plugins: PluginManager) -> dict[str, Any]:
    """Return the OpenAPI document of a server with these plugins; no model is needed."""
    return openapi.openapi(routes_of(plugins))


def routes_of(plugins: PluginManager) -> list[Route]:
    """Return all routes of a server with these plugins; no model is needed.

    The log names the plugins whose routes are missing: those of the deprecated form of
    `ostro_routes`.
    """
    for name in plugins.deprecated_routes():
        log.warning("plugin %s: %s", name, ROUTES_NOTE)
    return [*built_in_routes(), *plugin_routes(plugins)]


def built_in_routes() -> list[Route]:
    """Return the routes of all built-in API families."""
    return [route for family in FAMILIES for route in family.ROUTES]


def open_paths(routes: Sequence[Route]) -> set[str]:
    """Return the paths of the scope "open".

    A folder of files adds its path with a slash, for all paths below it, unless it is the root.
    """
    found = set()
    for route in routes:
        method, _, path = route.name.partition(" ")
        if route.scope == "open":
            found.add(path)
            if method == "FILES" and path.strip("/"):
                found.add(f"{path.rstrip('/')}/")
    return found


class RecordedRoute(HttpRoute):
    """A route that is stored in the scope, as FastAPI's own routes are, with its record."""

    record: Route

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if (header := self.record.header) and header not in Headers(scope=scope):
            return Match.NONE, {}
        match, found = super().matches(scope)
        return match, {**found, "route": self}


def starlette_routes(
    routes: Sequence[Route],
    plugins: PluginManager,
    forwarding: Callable[[Route], Endpoint | None] | None,
) -> list[BaseRoute]:
    """Return the routes of Starlette, those with a header first. forwarding: as in `make_app`."""
    return [
        starlette_route(route, forwarding(route) if forwarding else None, place_of(route, plugins))
        for route in sorted(routes, key=lambda x: not x.header)
    ]


def place_of(route: Route, plugins: PluginManager) -> str:
    """Return a route and its plugin, for the log."""
    origin = plugins.origin("routes", route.name)
    return f"the route {route.name!r}" + (f" of {origin}" if origin else "")


def starlette_route(route: Route, endpoint: Endpoint | None = None, place: str = "") -> BaseRoute:
    """Return a route that requires the record's scope of its callers.

    endpoint: answers its requests in the place of the record's handler or endpoint. place: the
    route and its plugin, for the log.
    """
    method, _, path = route.name.partition(" ")
    if method == "FILES":
        files = StaticFiles(directory=str(route.endpoint), html=True)
        return Mount(path, guarded_files(route, files), name=route.name)
    if route.handler is not None:
        own = endpoint_of(route, place)
    else:
        own = checked_endpoint(cast(Endpoint, route.endpoint), place)
    answer = endpoint or own
    if method == "WEBSOCKET":
        return WebSocketRoute(path, guarded(route, answer), name=route.name)
    found = RecordedRoute(path, guarded(route, answer), methods=[method], name=route.name)
    found.record = route
    return found


def guarded(route: Route, endpoint: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Return an endpoint that raises Forbidden for callers without the route's scope."""
    if route.name.startswith("WEBSOCKET "):

        async def on_socket(socket: WebSocket) -> None:
            try:
                caller_of(socket).require(route.scope)
            except OstroError:
                return await socket.close(POLICY_VIOLATION)
            await endpoint(socket)

        return on_socket

    async def on_request(request: Request) -> Response:
        caller_of(request).require(route.scope)
        response: Response = await endpoint(request)
        return response

    return on_request


def guarded_files(route: Route, files: ASGIApp) -> ASGIApp:
    """Return an application that raises Forbidden for callers without the route's scope."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        caller_of(HTTPConnection(scope)).require(route.scope)
        await files(scope, receive, send)

    return serve


def plugin_routes(plugins: PluginManager, **deprecated: object) -> list[Route]:
    """Return the routes of plugins. A plugin cannot replace a built-in route.

    A route with a header only precedes it, for requests with the header. The log names the routes
    that are not served. `deprecated` are the arguments of `ostro_routes`.
    """
    routes, taken = [], [starlette_route(route) for route in built_in_routes()]
    records = plugins.collect("routes", **deprecated)
    for name, message in plugins.conflicts("routes").items():
        log.error("plugin route %r ignored: %s", name, message)
    for name, record in records.items():
        method, _, path = name.partition(" ")
        if not (method.isupper() and path.startswith("/")):
            log.warning("plugin route %r ignored: name it 'METHOD /path'", name)
        elif not record.header and any(
            route.path_regex.match(path) for route in taken if isinstance(route, HttpRoute)
        ):
            log.warning("plugin route %r ignored: its path is a built-in route", name)
        else:
            routes.append(record)
    return routes
