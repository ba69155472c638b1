"""Routes for probes: whether the server works, and whether it accepts requests."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from ostro.core.errors import EngineDied
from ostro.core.ipc.client import AsyncEngine
from ostro.core.records import API, Route
from ostro.entrypoints.http.context import operations_of
from ostro.entrypoints.http.errors import ErrorDetail, error_content, respond, respond_to
from ostro.entrypoints.http.metrics import EngineMetrics, cache_usage
from ostro.entrypoints.operations.admission import Admission
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


class Load(msgspec.Struct, kw_only=True):
    """What the server does now. `server_load` are the HTTP requests under way, as in vLLM.

    `running` and `waiting` are sequences of all models, of the engine's last heartbeat.
    `kv_cache_usage` is the largest fraction of a model's KV cache in use. `queued` are the admitted
    sequences that have not ended, `queue_limit` their limit.
    """

    server_load: int
    running: int
    waiting: int
    kv_cache_usage: float
    queued: int
    queue_limit: int | None


class Version(msgspec.Struct, kw_only=True):
    """The versions of ostro, of torch, and of the plugin interface."""

    version: str
    torch: str
    api: list[int]


async def load(request: Request) -> Response:
    """Return the load of the server."""
    metrics: EngineMetrics = request.app.state.metrics
    await metrics.refresh_http()
    stats, admission = metrics.requests.stats.values(), metrics.service.engine.admission
    own = admission if isinstance(admission, Admission) else None
    content = Load(
        server_load=metrics.requests.all_http().running - 1,  # without this one
        running=sum(each.running for each in stats),
        waiting=sum(each.waiting for each in stats),
        kv_cache_usage=max(map(cache_usage, stats), default=0.0),
        queued=0 if own is None else own.rows,
        queue_limit=None if own is None else own.max_rows,
    )
    return respond(200, content)


async def version(request: Request) -> Response:
    """Return the versions of the server."""
    return respond(200, versions())


@cache
def versions() -> Version:
    """Read the versions of the installed packages; the server process does not import torch."""
    return Version(version=metadata.version("ostro"), torch=metadata.version("torch"), api=[*API])


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
        Route(name="GET /load", endpoint=load, scope="open", response=Load),
        Route(name="GET /version", endpoint=version, scope="open", response=Version),
    ]
