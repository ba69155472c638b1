"""Routes that load, unload, requantize and inspect models while others serve.

They require the scope "admin" if the server has keys. Models that the server was not started with
require --model-root.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace

import msgspec
from msgspec import UNSET, UnsetType

from ostro.core.errors import (
    AdapterForbidden,
    AdapterNotFound,
    EngineDied,
    ModelNotFound,
    Overloaded,
    RequestError,
    Unsupported,
    UsageError,
)
from ostro.core.messages.outputs import Stats
from ostro.core.messages.requests import DEFAULT_MODEL
from ostro.core.placement.patterns import parse_rules
from ostro.core.routes import Route, RouteHandler
from ostro.core.settings import Settings
from ostro.entrypoints.operations.access.admin import Admin
from ostro.entrypoints.operations.access.caller import Caller, Forbidden
from ostro.entrypoints.operations.models.model_manager import ModelManager
from ostro.entrypoints.operations.models.service import Service
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.serve_config import further_model

STATS_SECONDS = 1.0
"""Seconds to wait for the engine's figures."""
MAX_NAME = 128
"""Limit on the length of a model's name, in characters."""


class LoadModelRequest(msgspec.Struct, kw_only=True):
    """A model to load: one of the server's, or with `reference` the one at a path below
    --model-root. The other fields are options of that model, as on the command line, but `topology`
    has rules, not the name of a file.
    """

    model: str
    reference: str | None = None
    quant: str | None = None
    topology: str | None = None
    context: int | None = None
    max_seqs: int | None = None
    memory: str | None = None
    kv_dtype: str | None = None
    dtype: str | None = None


class ModelRequest(msgspec.Struct, kw_only=True):
    """A model of the server."""

    model: str


class RequantizeRequest(msgspec.Struct, kw_only=True):
    """The formats of a model's weights, as --quant and --topology; without both, the checkpoint's
    own. `topology` has rules, not the name of a file.
    """

    quant: str | None = None
    topology: str | None = None


class IsqRequest(msgspec.Struct, kw_only=True):
    """The format of the default model's weights; the names are those of --quant."""

    ggml_type: str


class ModelProgress(msgspec.Struct, kw_only=True):
    """The progress of a load: `done` of `total`, in a unit that depends on the stage `what`."""

    what: str
    done: int
    total: int


class ModelStatus(msgspec.Struct, kw_only=True):
    """A model of the server.

    `state` is "loaded", "loading", "unloaded" or "failed", with the `error` of the last load.
    `idle_seconds` is the time since the last request. `running` and `waiting` are sequences; the
    figures in bytes are the memory of the model on all devices. They are absent if it is not
    loaded. `explain` are the lines of --explain after a load.
    """

    model: str
    state: str
    load: str
    aliases: list[str]
    default: bool
    error: str | UnsetType = UNSET
    progress: ModelProgress | UnsetType = UNSET
    context: int | UnsetType = UNSET
    idle_seconds: float | UnsetType = UNSET
    running: int | UnsetType = UNSET
    waiting: int | UnsetType = UNSET
    weight_bytes: int | UnsetType = UNSET
    cache_bytes: int | UnsetType = UNSET
    adapter_bytes: int | UnsetType = UNSET
    explain: list[str] | UnsetType = UNSET


async def load(operations: Operations, caller: Caller, body: LoadModelRequest) -> ModelStatus:
    """Load a model, or load it again."""
    manager = manager_of(operations)
    if body.reference is None:
        check_no_options(body)
        explain = await manager.load(body.model)
    else:
        check_name(manager.service, body.model)
        check_topology(body.topology)
        path = await asyncio.to_thread(find, operations.model_admin, body.reference)
        settings = settings_of(body, path, manager)
        explain = await manager.add(body.model, settings)
    return await status_of(manager, body.model, explain)


async def unload(operations: Operations, caller: Caller, body: ModelRequest) -> ModelStatus:
    """Unload a model once its requests have ended."""
    manager = manager_of(operations)
    await manager.unload(body.model)
    return await status_of(manager, body.model)


async def reload(operations: Operations, caller: Caller, body: ModelRequest) -> ModelStatus:
    """Read the files of a model again."""
    manager = manager_of(operations)
    explain = await manager.load(body.model)
    return await status_of(manager, body.model, explain)


async def requantize(
    operations: Operations, caller: Caller, body: RequantizeRequest, *, id: str
) -> ModelStatus:
    """Load a model in other formats; running requests end with the old ones."""
    manager = manager_of(operations)
    check_topology(body.topology)
    explain = await manager.requantize(id, body.quant, body.topology)
    return await status_of(manager, id, explain)


async def re_isq(operations: Operations, caller: Caller, body: IsqRequest) -> ModelStatus:
    """Load the default model in another format; mistral.rs's route."""
    manager = manager_of(operations)
    explain = await manager.requantize(DEFAULT_MODEL, body.ggml_type, None)
    return await status_of(manager, DEFAULT_MODEL, explain)


async def status(operations: Operations, caller: Caller, request: None, *, id: str) -> ModelStatus:
    """Describe the state and the memory of a model."""
    return await status_of(manager_of(operations), id)


def require_model_admin(operations: Operations) -> None:
    """Raise LoadingDisabled if the routes are disabled."""
    operations.model_admin.check()


def manager_of(operations: Operations) -> ModelManager:
    """The manager of the server's models. Raises Unsupported if the models are fixed."""
    manager = operations.service.manager
    if manager is None:
        raise Unsupported("the models of this server are fixed")
    if not manager.started:
        raise Overloaded("the server is still loading; see /ready")
    return manager


def find(admin: Admin, reference: str) -> str:
    """The path of a model below --model-root.

    Raises LoadingDisabled without it, ModelNotFound, and Forbidden for a path that leads out of it.
    """
    try:
        return str(admin.find(reference))
    except AdapterNotFound as error:
        raise ModelNotFound(str(error), param="reference") from None
    except AdapterForbidden as error:
        raise Forbidden(str(error), param="reference") from None


def check_name(service: Service, name: str) -> None:
    """Raise RequestError for the name of a model that is invalid or taken."""
    if not 0 < len(name) <= MAX_NAME or not name.isprintable() or name.strip() != name:
        raise RequestError(
            f"model: expected a name of 1 to {MAX_NAME} printable characters", param="model"
        )
    adapters = (each for model in service.names for each in service.adapters.of(model))
    if name == DEFAULT_MODEL or name in service.aliases or name in adapters:
        raise RequestError(f"{name!r} is the name of an adapter or an alias", param="model")


def check_topology(topology: str | None) -> None:
    """Raise RequestError unless a topology consists of rules.

    On the command line it may be the path of a file. A client must not name files of the server.
    """
    if topology is None:
        return
    try:
        parse_rules(topology)
    except UsageError:
        raise RequestError(
            f"topology: {topology!r:.80} is not a list of rules; write PATTERN = FORMAT, ...; a "
            "TOML file can be named only on the command line",
            param="topology",
        ) from None


def options_of(body: LoadModelRequest) -> dict[str, object]:
    """The options that a request states."""
    fields = ("quant", "topology", "context", "max_seqs", "memory", "kv_dtype", "dtype")
    given = {name: getattr(body, name) for name in fields}
    return {name: value for name, value in given.items() if value is not None}


def check_no_options(body: LoadModelRequest) -> None:
    """Raise RequestError for options of a model whose options the server's are."""
    if options := options_of(body):
        raise RequestError(
            f"{', '.join(options)}: options require a reference; to change the formats of a model "
            "use its route requantize",
            param=next(iter(options)),
        )


def settings_of(body: LoadModelRequest, path: str, manager: ModelManager) -> Settings:
    """The settings of a model below --model-root: those of the default one, and the request's."""
    first = next(iter(manager.models.values())).options.settings
    default = replace(further_model(first, path).settings, reference=path, name=body.model)
    return replace(default, offline=True, **options_of(body))  # type: ignore[arg-type]


async def status_of(
    manager: ModelManager, name: str, explain: list[str] | None = None
) -> ModelStatus:
    """The status of a model. Raises NotFound."""
    managed, service = manager.get(name), manager.service
    found = ModelStatus(
        model=managed.name,
        state=manager.state(managed.name),
        load=managed.options.load,
        aliases=list(managed.options.aliases),
        default=managed.name == service.name,
    )
    if managed.error is not None:
        found.error = str(managed.error)
    if (progress := manager.progress(managed.name)) is not None:
        found.progress = ModelProgress(what=progress.what, done=progress.done, total=progress.total)
    if managed.used:
        found.idle_seconds = round(time.monotonic() - managed.used, 3)
    if explain is not None:
        found.explain = explain
    if found.state == "loaded":
        found.context = service.served[managed.name].context
        add_figures(found, await stats_of(service, managed.name))
    return found


async def stats_of(service: Service, name: str) -> Stats | None:
    """The counters of a model, None if the engine does not answer now."""
    with suppress(TimeoutError, EngineDied, Overloaded):
        async with asyncio.timeout(STATS_SECONDS):
            stats = await service.engine.stats()
        return stats.models.get(name)
    return None


def add_figures(status: ModelStatus, stats: Stats | None) -> None:
    """Add the counters of a loaded model to its status."""
    if stats is None:
        return
    status.running, status.waiting = stats.running, stats.waiting
    status.weight_bytes, status.adapter_bytes = stats.weight_bytes, stats.adapter_bytes
    status.cache_bytes = stats.cache_capacity_bytes


def post(path: str, handler: RouteHandler, body: object) -> Route:
    """Return a route that changes which models are loaded."""
    return Route(
        name=f"POST {path}",
        handler=handler,
        scope="admin",
        requires=require_model_admin,
        request=body,
        response=ModelStatus,
        error_statuses=(400, 404, 422, 503, 507),
    )


ROUTES: tuple[Route, ...] = (
    post("/v1/models/load", load, LoadModelRequest),
    post("/v1/models/unload", unload, ModelRequest),
    post("/v1/models/reload", reload, ModelRequest),
    post("/v1/models/{id:path}/requantize", requantize, RequantizeRequest),
    post("/re_isq", re_isq, IsqRequest),
    Route(
        name="GET /v1/models/{id:path}/status",
        handler=status,
        scope="admin",
        requires=require_model_admin,
        response=ModelStatus,
    ),
)
