"""Routes for probes: whether the server works, and whether it accepts requests."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from ostro.core.errors import EngineDied, OstroError
from ostro.core.ipc.client import AsyncEngine
from ostro.core.records import API
from ostro.core.routes import Content, Route
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.models.service import Service
from ostro.entrypoints.operations.models.tool_checks import faults_of, gaps_of
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.requests.errors import ErrorDetail, error_content


class EngineHung(OstroError):
    """The engine process does not respond."""

    status, code = 503, "engine_hung"


class Health(msgspec.Struct, kw_only=True):
    """The engine starts or runs."""

    status: Literal["ok"] = "ok"


class LoadingProgress(msgspec.Struct, kw_only=True):
    """The progress of loading: `done` of `total`, in a unit that depends on the stage `what`."""

    what: str
    done: int
    total: int


class ToolReadiness(msgspec.Struct, kw_only=True):
    """Whether a model can call tools.

    `notation` is the parser that matches the chat template, `parser` the one of the outputs; null
    for none. `chosen_by` is "chat template" or "--tool-parser". `declares`: the chat template shows
    tools to the model; `writes`: it writes the calls of earlier answers. `reads`: the parser reads
    what the chat template writes; null if that is unknown, with the `reason`. `reads_reasoning`:
    the same of reasoning.
    """

    notation: str | None
    parser: str | None
    chosen_by: str
    declares: bool
    writes: bool
    reads: bool | None
    reads_reasoning: bool | None
    reason: str


class ModelReadiness(msgspec.Struct, kw_only=True):
    """A loaded text model: its context in tokens, and its tool calls. `notes` state what is wrong
    with these, and what coding agents lack.
    """

    context: int
    tools: ToolReadiness
    notes: list[str]


class Readiness(msgspec.Struct, kw_only=True):
    """Whether the server accepts requests: weights are loaded, kernels are compiled.

    "held": requests wait for a call in the engine, such as that of a plugin, which takes long.
    `models` are the loaded text models by name; with keys, that of the default model only.
    """

    status: Literal["ready", "loading", "draining", "held"]
    model: str | UnsetType = UNSET
    models: dict[str, ModelReadiness] | UnsetType = UNSET
    error: ErrorDetail | UnsetType = UNSET
    progress: LoadingProgress | UnsetType = UNSET


class Version(msgspec.Struct, kw_only=True):
    """The versions of ostro, of torch, and of the plugin interface."""

    version: str
    torch: str
    api: list[int]


async def version(operations: Operations, caller: Caller, request: None) -> Version:
    """Return the versions of the server."""
    return versions()


@cache
def versions() -> Version:
    """Read the versions of the installed packages; the server process does not import torch."""
    return Version(version=metadata.version("ostro"), torch=metadata.version("torch"), api=[*API])


async def health(operations: Operations, caller: Caller, request: None) -> Health:
    """Return 200 while the engine starts or runs, 503 if it has ended or hangs."""
    check_engine(operations.service.engine)
    return Health()


def check_engine(engine: AsyncEngine) -> None:
    """Raise EngineDied or EngineHung for an engine that does not work."""
    if engine.fault is not None:
        raise EngineDied(str(engine.fault))
    if engine.hung:
        reason = f"the engine has not responded for {engine.silence:.0f} s"
        cause = f": {engine.held}" if engine.held else ""
        raise EngineHung(f"{reason}{cause}; restart the server")


async def ready(operations: Operations, caller: Caller, request: None) -> Readiness | Content:
    """Return 200 if the server accepts requests, otherwise 503 and the progress of loading."""
    service = operations.service
    engine = service.engine
    if service.ready and engine.held:
        error = error_content(503, engine.held, "not_ready").error
        held = Readiness(status="held", model=service.name, error=error)
        return Content(data=msgspec.json.encode(held), status=503)
    if service.ready:
        models = {name: readiness_of(service, name) for name in checked_models(service, caller)}
        return Readiness(status="ready", model=service.name, models=models or UNSET)
    check_engine(engine)
    status: Literal["loading", "draining"] = "draining" if engine.draining else "loading"
    step = engine.progress
    message = f"{status}: {step.what}" if status == "loading" else status
    readiness = Readiness(
        status=status,
        error=error_content(503, message, "not_ready").error,
        progress=LoadingProgress(what=step.what, done=step.done, total=step.total),
    )
    return Content(data=msgspec.json.encode(readiness), status=503)


def checked_models(service: Service, caller: Caller) -> list[str]:
    """The models whose tool calls have been checked and whose names the caller may read."""
    shown = [service.name] if service.hides_names else filter(caller.may_use, service.names)
    return [name for name in shown if name in service.models and name in service.tool_support]


def readiness_of(service: Service, name: str) -> ModelReadiness:
    """Describe the tool calls of a model."""
    support, context = service.tool_support[name], service.served[name].context
    tools = ToolReadiness(
        notation=support.notation,
        parser=support.parser,
        chosen_by=support.chosen_by,
        declares=support.declares,
        writes=support.writes,
        reads=support.reads,
        reads_reasoning=support.reads_reasoning,
        reason=support.reason,
    )
    notes = [*faults_of(support), *gaps_of(support, context)]
    return ModelReadiness(context=context, tools=tools, notes=notes)


ROUTES: tuple[Route, ...] = (
    Route(name="GET /health", handler=health, scope="open", response=Health, error_statuses=(503,)),
    Route(
        name="GET /ready",
        handler=ready,
        scope="open",
        response=Readiness,
        error_statuses=(503,),
    ),
    Route(name="GET /version", handler=version, scope="open", response=Version, error_statuses=()),
)
