"""Routes for probes: whether the server works, and whether it accepts requests."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from ostro.core.errors import EngineDied
from ostro.core.ipc.client import AsyncEngine
from ostro.core.records import Route
from ostro.entrypoints.http.context import operations_of
from ostro.entrypoints.http.errors import ErrorDetail, error_content, respond, respond_to
from ostro.entrypoints.operations.operations import Operations


class Health(msgspec.Struct, kw_only=True):
    """The engine starts or runs."""

    status: Literal["ok"] = "ok"


class LoadingProgress(msgspec.Struct, kw_only=True):
    """The progress of loading: `done` of `total`, in a unit that depends on the stage `what`."""

    what: str
    done: int
    total: int


class Readiness(msgspec.Struct, kw_only=True):
    """Whether the server accepts requests: weights are loaded, kernels are compiled."""

    status: Literal["ready", "loading", "draining"]
    model: str | UnsetType = UNSET
    error: ErrorDetail | UnsetType = UNSET
    progress: LoadingProgress | UnsetType = UNSET


async def health(request: Request) -> Response:
    """Return 200 while the engine starts or runs, 503 if it has ended or hangs."""
    engine = operations_of(request).service.engine
    return engine_failure(engine) or respond(200, Health())


def engine_failure(engine: AsyncEngine) -> Response | None:
    """Return the response for an engine that has ended or hangs, None for a working one."""
    if engine.fault is not None:
        return respond_to(EngineDied(str(engine.fault)))
    if engine.hung:
        reason = f"the engine has not responded for {engine.silence:.0f} s"
        return respond(503, error_content(503, f"{reason}; restart the server", "engine_hung"))
    return None


async def ready(request: Request) -> Response:
    """Return 200 if the server accepts requests, otherwise 503 and the progress of loading."""
    service = operations_of(request).service
    engine = service.engine
    if service.ready:
        return respond(200, Readiness(status="ready", model=service.name))
    if response := engine_failure(engine):
        return response
    status: Literal["loading", "draining"] = "draining" if engine.draining else "loading"
    step = engine.progress
    message = f"{status}: {step.what}" if status == "loading" else status
    content = Readiness(
        status=status,
        error=error_content(503, message, "not_ready").error,
        progress=LoadingProgress(what=step.what, done=step.done, total=step.total),
    )
    return respond(503, content)


def routes(operations: Operations) -> list[Route]:
    """Return the routes."""
    return [
        Route(name="GET /health", endpoint=health, scope="open", response=Health),
        Route(name="GET /ready", endpoint=ready, scope="open", response=Readiness),
    ]
