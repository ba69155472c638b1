"""The HTTP application: its routes, health checks and middleware."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ostro.core.errors import EngineDied
from ostro.core.ipc.client import AsyncEngine
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.entrypoints.http import admin, audio, images, metrics, openai, speech, vectors
from ostro.entrypoints.http.admin import Admin
from ostro.entrypoints.http.budget import BodyBudget
from ostro.entrypoints.http.errors import HANDLERS, error_content, respond, respond_to
from ostro.entrypoints.http.measurement import MeasureMiddleware, RequestMetrics
from ostro.entrypoints.http.metrics import EngineMetrics
from ostro.entrypoints.http.middleware import AccessMiddleware, RequestId
from ostro.entrypoints.http.responses import ADAPTERS_HEADER
from ostro.entrypoints.http.service import Service

log = logging.getLogger(__name__)
PAGES = (openai, vectors, audio, images, speech, admin, metrics)
BUILTIN_ROUTES = tuple(route for page in PAGES for route in page.ROUTES)


async def health(request: Request) -> Response:
    """GET /health: 200 while the engine starts or runs, 503 if it has ended or hangs."""
    service: Service = request.app.state.service
    return engine_failure(service.engine) or respond(200, {"status": "ok"})


def engine_failure(engine: AsyncEngine) -> Response | None:
    """Return the response for an engine that has ended or hangs, None for a working one."""
    if engine.fault is not None:
        return respond_to(EngineDied(str(engine.fault)))
    if engine.hung:
        reason = f"the engine has not responded for {engine.silence:.0f} s"
        return respond(503, error_content(503, f"{reason}; restart the server", "engine_hung"))
    return None


async def ready(request: Request) -> Response:
    """GET /ready: 200 if the server accepts requests: weights are loaded, kernels are compiled."""
    service: Service = request.app.state.service
    engine = service.engine
    if service.ready:
        return respond(200, {"status": "ready", "model": service.name})
    if response := engine_failure(engine):
        return response
    status = "draining" if engine.draining else "loading"
    step = engine.progress
    content = error_content(
        503, f"{status}: {step.what}" if status == "loading" else status, "not_ready"
    )
    progress = {"what": step.what, "done": step.done, "total": step.total}
    return respond(503, {**content, "status": status, "progress": progress})


def make_app(
    service: Service,
    plugins: PluginManager,
    *,
    keys: Sequence[str] = (),
    hosts: Sequence[str] | None = None,
    origins: Sequence[str] = (),
    adapter_root: str | Path | None = None,
    admin_key: str | None = None,
) -> Starlette:
    """Return the application.

    keys: API keys that all routes but /health and /ready require. hosts: names to accept in the
    Host header, None for any. origins: web origins that CORS allows. adapter_root: folder that
    clients may load adapters from. admin_key: key for the adapter routes, valid as an API key too.
    Raises UsageError if the root is not a folder.
    """
    guard = Admin.of(adapter_root, admin_key, bool(keys))
    if keys and admin_key is not None:
        keys = [*keys, admin_key]
    routes = [
        Route("/health", health, methods=["GET"]),
        Route("/ready", ready, methods=["GET"]),
        *BUILTIN_ROUTES,
    ]
    routes += plugin_routes(plugins, service, {route.path for route in routes})
    requests = RequestMetrics(service.name)
    service.engine.observer = requests
    middleware = [Middleware(MeasureMiddleware, metrics=requests)]
    middleware += [Middleware(BodyBudget), Middleware(RequestId)]
    if origins:
        allow: dict[str, Any] = {"allow_methods": ["*"], "allow_headers": ["*"]}
        allow["expose_headers"] = [ADAPTERS_HEADER]
        allowed = Middleware(CORSMiddleware, allow_origins=list(origins), **allow)
        middleware.append(allowed)
    middleware.append(Middleware(AccessMiddleware, keys=keys, hosts=hosts))
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=HANDLERS)
    app.router.redirect_slashes = False
    app.state.service, app.state.admin = service, guard
    app.state.metrics = EngineMetrics(service, requests)
    app.state.text = resolve(plugins.get("pipelines", "text").pipeline)
    return app


def plugin_routes(plugins: PluginManager, service: Service, taken: set[str]) -> list[Route]:
    """Return the routes of plugins. A plugin cannot replace a built-in route."""
    routes = []
    for name, record in plugins.collect("routes", engine=service.engine).items():
        method, _, path = name.partition(" ")
        if not (method.isupper() and path.startswith("/")):
            log.warning("plugin route %r ignored: name it 'METHOD /path'", name)
        elif path in taken or any(route.path_regex.match(path) for route in BUILTIN_ROUTES):
            log.warning("plugin route %r ignored: its path is a built-in route", name)
        else:
            routes.append(Route(path, record.endpoint, methods=[method]))
    return routes
