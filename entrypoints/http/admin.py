"""Routes that load, unload and list adapters, named as in vLLM.

They require the scope "admin" if the server has keys. Loading requires --adapter-root.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ostro.core.errors import (
    AdapterConflict,
    AdapterError,
    AdapterForbidden,
    AdapterNotFound,
    UsageError,
)
from ostro.core.messages.commands import AdapterInfo
from ostro.core.messages.requests import DEFAULT
from ostro.core.paths import resolve_path
from ostro.core.records import Route
from ostro.entrypoints.http.body import read_request
from ostro.entrypoints.http.context import operations_of
from ostro.entrypoints.http.errors import respond
from ostro.entrypoints.operations.adapters import adapter_ref
from ostro.entrypoints.operations.keys import KeyRing
from ostro.entrypoints.operations.operations import Operations

log = logging.getLogger(__name__)
MAX_PATH = 4096
"""Limit on the length of a path, in characters."""
MAX_FILES = 10_000
"""Limit on the files in an adapter's folder."""


class LoadingDisabled(AdapterError):
    """The server has no folder to load adapters from."""

    status, code = 404, "lora_loading_disabled"


@dataclass(frozen=True)
class Admin:
    """Access control of the routes.

    root: resolved folder that adapters or models are loaded from, None to disable loading. open:
    the server has no keys at all. option: the option that sets the root.
    """

    root: Path | None = None
    open: bool = True
    option: str = "--adapter-root"

    @classmethod
    def of(cls, root: str | Path | None, ring: KeyRing, option: str = "--adapter-root") -> Admin:
        """Raises UsageError if the root is not a folder."""
        found = None if root is None else Path(root).expanduser().resolve()
        if found is not None and not found.is_dir():
            raise UsageError(f"{option} {root}: not a folder")
        return cls(found, not ring.locked and not ring.has_admin, option)

    def check(self) -> None:
        """Raise LoadingDisabled if the routes are disabled: without keys, they require a root."""
        if self.root is None and self.open:
            raise LoadingDisabled(f"these routes require {self.option} or --admin-key")

    def find(self, given: str) -> Path:
        """The path of an adapter or a model.

        Raises LoadingDisabled without a root, AdapterNotFound if it does not exist, and
        AdapterForbidden if the path, or a link in the folder, leads out of the root.
        """
        if self.root is None:
            raise LoadingDisabled(f"start the server with {self.option} to load from it")
        if len(given) > MAX_PATH or (found := self.inside(self.root / given)) is None:
            raise self.outside(given)
        if not os.path.exists(found):
            raise AdapterNotFound(f"{given!r:.200} does not exist", param="lora_path")
        for number, path in enumerate(entries(found)):
            if number >= MAX_FILES:
                raise AdapterError(f"{given!r:.200} has more than {MAX_FILES} files")
            if self.inside(path) is None:
                raise self.outside(given)
        return found

    def inside(self, path: Path) -> Path | None:
        """The resolved path, None if it is not within the root."""
        try:
            found = resolve_path(path)
        except (OSError, ValueError):
            return None
        return found if self.root in found.parents else None

    def outside(self, given: str) -> AdapterForbidden:
        return AdapterForbidden(
            f"{given!r:.200} is outside of {self.option}",
            param="lora_path",
        )

    def shown(self, error: AdapterError) -> AdapterError:
        """The error, with the path of the root removed from its message."""
        message = str(error).replace(f"{self.root}{os.sep}", "").replace(str(self.root), "")
        return type(error)(message, param=error.param)


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


async def load(request: Request) -> Response:
    """Load an adapter."""
    service = operations_of(request).service
    admin: Admin = request.app.state.admin
    admin.check()
    body = await read_request(request, LoadRequest)
    name, model = adapter_ref(body.lora_name, "lora_name").name, service.model(body.model)
    if name in (*service.names, DEFAULT):
        raise AdapterConflict(f"{name!r} is the name of a model", param="lora_name")
    path = await asyncio.to_thread(admin.find, body.lora_path)
    try:
        reported = await service.engine.adapt(
            "load",
            model=model,
            name=name,
            reference=str(path),
            inplace=body.load_inplace,
            expected=body.expected_generation,
            pinned=body.pinned,
        )
    except AdapterError as error:
        raise admin.shown(error) from None
    service.adapters.note(model, reported)
    log.info("%s: adapter %r is loaded", model, name)
    return respond(200, entry(model, service.adapters.of(model)[name]))


async def unload(request: Request) -> Response:
    """Unload an adapter."""
    service = operations_of(request).service
    admin: Admin = request.app.state.admin
    admin.check()
    body = await read_request(request, UnloadRequest)
    name, model = adapter_ref(body.lora_name, "lora_name").name, service.model(body.model)
    reported = await service.engine.adapt(
        "unload", model=model, name=name, expected=body.expected_generation
    )
    service.adapters.note(model, reported)
    log.info("%s: adapter %r is unloaded", model, name)
    return respond(200, Unloaded(name=name, model=model))


async def adapters(request: Request) -> Response:
    """List the adapters."""
    service = operations_of(request).service
    admin: Admin = request.app.state.admin
    admin.check()
    await service.refresh_adapters()
    data = [
        entry(model, info)
        for model in service.names
        for info in service.adapters.of(model).values()
    ]
    return respond(200, AdapterList(data=data))


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


def entries(path: Path) -> Iterator[Path]:
    """The files and folders in a folder, recursively; links are not followed."""
    for at, folders, files in os.walk(path):
        yield from (Path(at) / name for name in (*folders, *files))


def routes(operations: Operations) -> list[Route]:
    """Return the routes."""
    return [
        Route(
            name="POST /v1/load_lora_adapter",
            endpoint=load,
            scope="admin",
            request=LoadRequest,
            response=AdapterEntry,
        ),
        Route(
            name="POST /v1/unload_lora_adapter",
            endpoint=unload,
            scope="admin",
            request=UnloadRequest,
            response=Unloaded,
        ),
        Route(
            name="GET /v1/lora_adapters",
            endpoint=adapters,
            scope="admin",
            response=AdapterList,
            error_statuses=(404,),
        ),
    ]
