"""The HTTP application: the routes of all API families, and the middleware."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
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
from ostro.core.ipc.process import ProcessEngine
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Route, Settings, resolve
from ostro.entrypoints.http import (
    admin,
    audio,
    batches,
    files,
    health,
    images,
    metrics,
    openai,
    openapi,
    speech,
    vectors,
)
from ostro.entrypoints.http.admin import Admin
from ostro.entrypoints.http.budget import BodyBudget
from ostro.entrypoints.http.context import caller_of
from ostro.entrypoints.http.errors import HANDLERS, ErrorForm
from ostro.entrypoints.http.measurement import MeasureMiddleware, RequestMetrics
from ostro.entrypoints.http.metrics import CallerMetrics, EngineMetrics
from ostro.entrypoints.http.middleware import (
    POLICY_VIOLATION,
    AccessLog,
    AccessMiddleware,
    RequestId,
)
from ostro.entrypoints.http.responses import ADAPTERS_HEADER
from ostro.entrypoints.operations.documents import Documents
from ostro.entrypoints.operations.keys import KeyRing
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.quotas import Quotas
from ostro.entrypoints.operations.service import Service
from ostro.entrypoints.operations.state import State

log = logging.getLogger(__name__)
FAMILIES = (health, openai, vectors, audio, images, speech, files, batches, admin, metrics, openapi)
"""The modules of the built-in routes, one API family each."""


def make_app(
    service: Service,
    plugins: PluginManager,
    *,
    ring: KeyRing | None = None,
    hosts: Sequence[str] | None = None,
    origins: Sequence[str] = (),
    adapter_root: str | Path | None = None,
    open_metrics: bool = False,
    access_log: bool = False,
    state: State | None = None,
) -> FastAPI:
    """Return the application.

    ring: the API keys, None for a server without keys. hosts: names to accept in the Host header,
    None for any. origins: web origins that CORS allows. adapter_root: folder that clients may load
    adapters from. open_metrics: let /metrics answer without a key. state: the store of files and
    batches, None for a server without one. Raises UsageError if the root is not a folder.
    """
    ring, quotas = ring or KeyRing(), Quotas()
    guard = Admin.of(adapter_root, ring)
    operations = Operations(service, resolve(plugins.get("pipelines", "text").pipeline))
    routes = built_in_routes(operations)
    routes += plugin_routes(plugins, operations, routes)
    requests = RequestMetrics(service.name)
    requests.registry.register(CallerMetrics(quotas))
    service.engine.observer = requests
    middleware = [Middleware(MeasureMiddleware, metrics=requests)]
    middleware += [Middleware(BodyBudget), Middleware(RequestId)]
    if access_log:
        middleware.append(Middleware(AccessLog))
    if origins:
        allow: dict[str, Any] = {"allow_methods": ["*"], "allow_headers": ["*"]}
        allow["expose_headers"] = [ADAPTERS_HEADER]
        allowed = Middleware(CORSMiddleware, allow_origins=list(origins), **allow)
        middleware.append(allowed)
    paths = open_paths(routes) | ({"/metrics"} if open_metrics else set())
    access = Middleware(AccessMiddleware, ring=ring, quotas=quotas, hosts=hosts, open_paths=paths)
    middleware.append(access)
    app = FastAPI(
        openapi_url=None,
        routes=[starlette_route(route) for route in routes],
        middleware=middleware,
        exception_handlers=dict(HANDLERS),
        redirect_slashes=False,
    )
    app.state.operations, app.state.admin, app.state.routes = operations, guard, routes
    app.state.metrics = EngineMetrics(service, requests)
    app.state.documents = Documents(state or State(), batches.make_executor(app, ring, quotas))
    return app


def describe(plugins: PluginManager) -> dict[str, Any]:
    """Return the OpenAPI document of a server with these plugins; no model is needed."""
    service = Service(ProcessEngine(Settings()), "model")
    operations = Operations(service, resolve(plugins.get("pipelines", "text").pipeline))
    routes = built_in_routes(operations)
    return openapi.openapi([*routes, *plugin_routes(plugins, operations, routes)])


def built_in_routes(operations: Operations) -> list[Route]:
    """Return the routes of all built-in API families."""
    return [route for family in FAMILIES for route in family.routes(operations)]


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
    """A route that is recorded in the scope, as FastAPI's own routes are.

    `errors` is the field of its record.
    """

    errors: ErrorForm | None = None

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        return match, {**found, "route": self}


def starlette_route(route: Route) -> BaseRoute:
    """Return a route that requires the record's scope of its callers."""
    method, _, path = route.name.partition(" ")
    if method == "FILES":
        files = StaticFiles(directory=str(route.endpoint), html=True)
        return Mount(path, guarded_files(route, files), name=route.name)
    assert callable(route.endpoint)
    if method == "WEBSOCKET":
        return WebSocketRoute(path, guarded(route, route.endpoint), name=route.name)
    endpoint = guarded(route, route.endpoint)
    found = RecordedRoute(path, endpoint, methods=[method], name=route.name)
    found.errors = route.errors
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


def plugin_routes(
    plugins: PluginManager, operations: Operations, builtin: Sequence[Route]
) -> list[Route]:
    """Return the routes of plugins. A plugin cannot replace a built-in route."""
    routes = []
    engine, taken = operations.service.engine, [starlette_route(route) for route in builtin]
    for name, record in plugins.collect("routes", server=operations, engine=engine).items():
        method, _, path = name.partition(" ")
        if not (method.isupper() and path.startswith("/")):
            log.warning("plugin route %r ignored: name it 'METHOD /path'", name)
        elif any(route.path_regex.match(path) for route in taken if isinstance(route, HttpRoute)):
            log.warning("plugin route %r ignored: its path is a built-in route", name)
        else:
            routes.append(record)
    return routes
