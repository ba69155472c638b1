"""Routes that load, unload and list adapters, named as in vLLM.

They require the scope "admin" if the server has keys. Loading requires --adapter-root.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

import msgspec

from ostro.core.errors import AdapterConflict, AdapterError
from ostro.core.messages.commands import AdapterInfo, LoadAdapter, UnloadAdapter
from ostro.core.messages.requests import DEFAULT_MODEL
from ostro.core.routes import Route
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.models.adapters import adapter_ref
from ostro.entrypoints.operations.operations import Operations

log = logging.getLogger(__name__)


class LoadRequest(msgspec.Struct, kw_only=True):
    """An adapter to load. The fields from `expected_generation` on extend vLLM's API."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False
    expected_generation: str | None = None
    model: str | None = None
    pinned: bool = False


class UnloadRequest(msgspec.Struct, kw_only=True):
    """An adapter to unload. vLLM's field `lora_int_id` is ignored."""

    lora_name: str
    lora_int_id: int | None = None
    expected_generation: str | None = None
    model: str | None = None


class AdapterEntry(msgspec.Struct, kw_only=True):
    """The public properties of an adapter; its path is not one of them."""

    name: str
    model: str
    generation: str | None
    loaded: bool
    resident: bool
    pinned: bool
    requests: int
    running: int
    kind: str | None
    rank: int
    bytes: int
    effect: float | None
    modules: int


class AdapterList(msgspec.Struct, kw_only=True):
    """The adapters of all models."""

    data: list[AdapterEntry]
    object: Literal["list"] = "list"


class Unloaded(msgspec.Struct, kw_only=True):
    """An adapter that was unloaded."""

    name: str
    model: str
    unloaded: Literal[True] = True


async def load(operations: Operations, caller: Caller, body: LoadRequest) -> AdapterEntry:
    """Load an adapter."""
    service, admin = operations.service, operations.adapter_admin
    name, model = adapter_ref(body.lora_name, "lora_name").name, service.model(body.model)
    if name in (*service.names, DEFAULT_MODEL):
        raise AdapterConflict(f"{name!r} is the name of a model", param="lora_name")
    path = await asyncio.to_thread(admin.find, body.lora_path)
    command = LoadAdapter(
        model=model,
        name=name,
        reference=str(path),
        inplace=body.load_inplace,
        expected=body.expected_generation,
        pinned=body.pinned,
    )
    try:
        reported = await service.engine.adapt(command)
    except AdapterError as error:
        raise admin.shown(error) from None
    service.adapters.note(model, reported)
    log.info("%s: adapter %r is loaded", model, name)
    return entry(model, service.adapters.of(model)[name])


async def unload(operations: Operations, caller: Caller, body: UnloadRequest) -> Unloaded:
    """Unload an adapter."""
    service = operations.service
    name, model = adapter_ref(body.lora_name, "lora_name").name, service.model(body.model)
    command = UnloadAdapter(model=model, name=name, expected=body.expected_generation)
    reported = await service.engine.adapt(command)
    service.adapters.note(model, reported)
    log.info("%s: adapter %r is unloaded", model, name)
    return Unloaded(name=name, model=model)


async def list_adapters(operations: Operations, caller: Caller, request: None) -> AdapterList:
    """List the adapters."""
    service = operations.service
    await service.refresh_adapters()
    data = [
        entry(model, info)
        for model in service.names
        for info in service.adapters.of(model).values()
    ]
    return AdapterList(data=data)


def require_adapter_admin(operations: Operations) -> None:
    """Raise LoadingDisabled if the routes are disabled."""
    operations.adapter_admin.check()


def entry(model: str, info: AdapterInfo) -> AdapterEntry:
    return AdapterEntry(
        name=info.name,
        model=model,
        generation=info.generation or None,
        loaded=info.loaded,
        resident=info.resident,
        pinned=info.pinned,
        requests=info.requests,
        running=info.running,
        kind=info.kind or None,
        rank=info.rank,
        bytes=info.nbytes,
        effect=info.effect,
        modules=info.modules,
    )


ROUTES: tuple[Route, ...] = (
    Route(
        name="POST /v1/load_lora_adapter",
        handler=load,
        scope="admin",
        requires=require_adapter_admin,
        request=LoadRequest,
        response=AdapterEntry,
        error_statuses=(400, 404, 409, 422, 503),
    ),
    Route(
        name="POST /v1/unload_lora_adapter",
        handler=unload,
        scope="admin",
        requires=require_adapter_admin,
        request=UnloadRequest,
        response=Unloaded,
        error_statuses=(400, 404, 409, 503),
    ),
    Route(
        name="GET /v1/lora_adapters",
        handler=list_adapters,
        scope="admin",
        requires=require_adapter_admin,
        response=AdapterList,
        error_statuses=(404,),
    ),
)
