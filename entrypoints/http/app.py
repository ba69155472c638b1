"""The HTTP application: routes, health, and what stands before them."""

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
from ostro.entrypoints.http.errors import HANDLERS, body, respond, respond_to
from ostro.entrypoints.http.middleware import AccessMiddleware, RequestId
from ostro.entrypoints.http.service import Service
from ostro.entrypoints.http.shapes import ADAPTERS

log = logging.getLogger(__name__)
PAGES = (openai, vectors, audio, images, speech, admin, metrics)
OURS = tuple(route for page in PAGES for route in page.ROUTES)


async def health(request: Request) -> Response:
    """GET /health: 200 while the engine lives, or is being started; 503 if it is gone or hangs."""
    service: Service = request.app.state.service
    return trouble(service.engine) or respond(200, {"status": "ok"})


def trouble(engine: AsyncEngine) -> Response | None:
    """What to answer for an engine that is gone, or gives no sign of life."""
    if engine.fault is not None:
        return respond_to(EngineDied(str(engine.fault)))
    if engine.hung:
        reason = f"the engine has given no sign of life for {engine.silence:.0f} s"
        return respond(503, body(503, f"{reason}; restart the server", "engine_hung"))
    return None


async def ready(request: Request) -> Response:
    """GET /ready: 200 when a request would be answered; kernels are compiled, a token was drawn."""
    service: Service = request.app.state.service
    engine = service.engine
    if service.ready:
        return respond(200, {"status": "ready", "model": service.name})
    if response := trouble(engine):
        return response
    status = "draining" if engine.draining else "loading"
    step = engine.progress
    content = body(503, f"{status}: {step.what}" if status == "loading" else status, "not_ready")
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
    """The application.

    `keys` open every route but /health; `hosts` are the names a request may address the server by,
    None for any; `origins` are the web origins whose pages may call it; `adapter_root` is where
    adapters may be loaded from, by whom has the `admin_key`, which opens the other routes as well.
    Raises UsageError for a root that is none.
    """
    guard = Admin.of(adapter_root, admin_key, bool(keys))
    if keys and admin_key is not None:
        keys = [*keys, admin_key]
    routes = [
        Route("/health", health, methods=["GET"]),
        Route("/ready", ready, methods=["GET"]),
        *OURS,
    ]
    routes += plugin_routes(plugins, service, {route.path for route in routes})
    middleware = [Middleware(BodyBudget), Middleware(RequestId)]
    if origins:
        allow: dict[str, Any] = {"allow_methods": ["*"], "allow_headers": ["*"]}
        allow["expose_headers"] = [ADAPTERS]
        allowed = Middleware(CORSMiddleware, allow_origins=list(origins), **allow)
        middleware.append(allowed)
    middleware.append(Middleware(AccessMiddleware, keys=keys, hosts=hosts))
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=HANDLERS)
    app.router.redirect_slashes = False
    app.state.service, app.state.admin = service, guard
    app.state.text = resolve(plugins.get("pipelines", "text").pipeline)
    return app


def plugin_routes(plugins: PluginManager, service: Service, taken: set[str]) -> list[Route]:
    """The routes that plugins add; ours stay ours."""
    routes = []
    for name, record in plugins.collect("routes", engine=service.engine).items():
        method, _, path = name.partition(" ")
        if not (method.isupper() and path.startswith("/")):
            log.warning("the plugin route %r is not used: its name is no 'METHOD /path'", name)
        elif path in taken or any(route.path_regex.match(path) for route in OURS):
            log.warning("the plugin route %r is not used: ostro has that path itself", name)
        else:
            routes.append(Route(path, record.endpoint, methods=[method]))
    return routes
