"""State of the server: the models it serves, their adapters, and the engine client."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, overload

from ostro.core.errors import AdapterNotFound, NotFound, Overloaded, Unsupported, close_names
from ostro.core.ipc.client import AsyncEngine
from ostro.core.messages.requests import DEFAULT_MODEL, AdapterRef
from ostro.core.messages.target import ModelTarget
from ostro.core.pipeline import ServedModel, TextPipeline
from ostro.core.tasks import (
    ImagePipeline,
    SpeechPipeline,
    TaskPipeline,
    TranscriptionPipeline,
    VectorPipeline,
    VectorTask,
)
from ostro.core.tool_support import ToolSupport
from ostro.entrypoints.operations.access.admission import CLAIM
from ostro.entrypoints.operations.access.caller import ANYONE, Caller
from ostro.entrypoints.operations.models.adapters import Adapters, adapter_refs

if TYPE_CHECKING:
    from ostro.entrypoints.operations.models.model_manager import ModelManager

P = TypeVar("P", bound=TaskPipeline, covariant=True)
T = TypeVar("T", bound=str)

EVERY_NAME = "*"
"""An alias that stands for every name that is not one of a model or adapter."""

LATEST = ":latest"
"""The tag that Ollama's clients add to a name without one."""

LISTED_NAMES = 20
"""The number of names that the error for an unknown one lists."""


@dataclass(frozen=True)
class ResolvedTarget(Generic[P]):
    """An accepted request: its model, pipeline and adapters. The response contains `name`."""

    model: str
    pipeline: P
    adapters: tuple[AdapterRef, ...]
    name: str


class Service:
    """The state of a server. `models` maps names to pipelines by task; it is empty until ready."""

    def __init__(self, engine: AsyncEngine, *names: str, resolves: bool = False) -> None:
        """names: of all models, the default first. resolves: treat unknown names as adapters of the
        default model, which adapter resolvers find.
        """
        self.engine, self.names, self.resolves = engine, names, resolves
        self.models: dict[str, Mapping[str, TaskPipeline]] = {}
        self.served: dict[str, ServedModel] = {}  # their configs, templates and files
        self.tool_support: dict[str, ToolSupport] = {}  # of text models that have been checked
        self.hides_names = False  # whether only clients with a key may read the names of models
        self.adapters = Adapters(engine)
        self.takes_media = False  # whether chats may contain images, videos and audio
        self.aliases: dict[str, str] = {}  # "*" stands for every unknown name
        self.manager: ModelManager | None = None  # loads and unloads models
        self.held = Counter[str]()  # clients' requests under way by model
        self.behind = False  # whether a restarted engine still lacks the adapters
        self.started = int(time.time())

    @property
    def name(self) -> str:
        """The name of the default model."""
        return self.names[0]

    @property
    def ready(self) -> bool:
        """Whether the server accepts requests."""
        return self.engine.ready and not self.behind and self.started_up

    @property
    def started_up(self) -> bool:
        """Whether the models that are loaded at the start have been loaded."""
        return bool(self.models) if self.manager is None else self.manager.started

    @property
    def max_context(self) -> int | None:
        """The largest context of the models, None if that of a model is unknown."""
        if self.manager is not None:
            return self.manager.max_context
        info = self.engine.info
        return None if info is None else max(facts.context for facts in info.models.values())

    async def refresh_adapters(self) -> None:
        """Update the list of adapters of all models from the engine."""
        for name in self.names:
            # The model does not support adapters, or is not loaded.
            with suppress(AdapterNotFound, NotFound):
                await self.adapters.refresh(name)

    async def restore(self) -> None:
        """Register the adapters of the previous engine process with the restarted one."""
        before = dict(self.adapters.known)
        await self.refresh_adapters()
        for name, known in before.items():
            await self.adapters.restore(name, known)
        self.behind = False

    def model(self, name: str | None) -> str:
        """Return the model with this name. Raises NotFound if there is none."""
        model, adapter = self.locate(name)
        if adapter is not None:
            raise self.unknown(name or "")
        return model

    def locate(self, name: str | None, caller: Caller = ANYONE) -> tuple[str, str | None]:
        """Return the model of a name or alias, and the adapter of "adapter" or "model:adapter".

        "name:latest" is "name" if there is no model or adapter of the whole name. Raises NotFound
        for an unknown name; it lists what the caller may use.
        """
        if name is None:
            return self.name, None
        target = target_of(self, name)
        if name.endswith(LATEST) and not exists(self, target):
            untagged = target_of(self, name.removesuffix(LATEST))
            target = untagged if exists(self, untagged) else target
        if target is not None:
            return target
        if EVERY_NAME in self.aliases:
            return self.aliases[EVERY_NAME], None
        if self.resolves:
            return self.name, name
        raise self.unknown(name, caller)

    def adapter_ids(self, caller: Caller = ANYONE) -> dict[str, tuple[str, str]]:
        """The ids of the adapters that a caller may use, with their models and names.

        An id is the name, or "model:name" if an earlier model or adapter has the name.
        """
        ids: dict[str, tuple[str, str]] = {}
        for model in filter(caller.may_use, self.names):
            for name in filter(caller.may_apply, self.adapters.of(model)):
                taken = name in self.names or name in ids
                ids[f"{model}:{name}" if taken else name] = model, name
        return ids

    def names_for(self, caller: Caller = ANYONE) -> list[str]:
        """The names that a caller's request may contain: models, "default", aliases, adapters."""
        aliases = [
            alias
            for alias, model in self.aliases.items()
            if alias != EVERY_NAME and caller.may_use(model)
        ]
        models = filter(caller.may_use, self.names)
        return list(dict.fromkeys([*models, DEFAULT_MODEL, *aliases, *self.adapter_ids(caller)]))

    def unknown(self, name: str, caller: Caller = ANYONE) -> NotFound:
        """The error for an unknown name. It lists the known ones, the similar first if many."""
        names = self.names_for(caller)
        more = len(names) - LISTED_NAMES
        if more > 0:
            similar = close_names(name[:200], names)
            names = list(dict.fromkeys([*similar, *names]))[:LISTED_NAMES]
        known = ", ".join(map(repr, names))
        rest = f" and {more} more, which GET /v1/models lists" if more > 0 else ""
        return NotFound(f"model {name!r:.100} not found; available: {known}{rest}", param="model")

    @overload
    async def admit(
        self, target: ModelTarget, task: Literal["text"] = "text", caller: Caller = ANYONE
    ) -> ResolvedTarget[TextPipeline]: ...

    @overload
    async def admit(
        self, target: ModelTarget, task: VectorTask, caller: Caller = ANYONE
    ) -> ResolvedTarget[VectorPipeline]: ...

    @overload
    async def admit(
        self, target: ModelTarget, task: Literal["transcribe"], caller: Caller = ANYONE
    ) -> ResolvedTarget[TranscriptionPipeline]: ...

    @overload
    async def admit(
        self, target: ModelTarget, task: Literal["speak"], caller: Caller = ANYONE
    ) -> ResolvedTarget[SpeechPipeline]: ...

    @overload
    async def admit(
        self, target: ModelTarget, task: Literal["draw"], caller: Caller = ANYONE
    ) -> ResolvedTarget[ImagePipeline]: ...

    @overload
    async def admit(
        self, target: ModelTarget, task: Literal["text"] | VectorTask, caller: Caller = ANYONE
    ) -> ResolvedTarget[TextPipeline | VectorPipeline]: ...

    async def admit(
        self, target: ModelTarget, task: str = "text", caller: Caller = ANYONE
    ) -> ResolvedTarget[TaskPipeline]:
        """Select the model, pipeline and adapters of a caller's request.

        Waits until a model that is loaded on demand is loaded. A request without a model gets one
        that supports the task and that the caller may use: the first whose default task it is, such
        as an embedding model; without one, or with adapters, the default model before others.

        Raises NotFound for an unknown name, Forbidden if the caller may not use it, Unsupported if
        the model does not support the task, RequestError for malformed adapters, Overloaded while
        the server is busy or loading or if the model cannot be loaded now, and EngineDied.
        """
        model, adapter = self.locate(target.model, caller)
        refs = adapter_refs(target, adapter)
        self.engine.admit()
        if not self.started_up:
            raise Overloaded("the model is still loading; see /ready")
        able = [each for each in self.names if task in self.tasks(each)]
        usable = [each for each in able if caller.may_use(each)]
        if target.model in (None, DEFAULT_MODEL) and usable:
            model = model if model in usable else usable[0]
            dedicated = [each for each in usable if self.tasks(each)[0] == task]
            if dedicated and not refs:
                model = dedicated[0]
        names = (ref.name or ref.generation for ref in refs)
        caller.check(model, names, asked=target.model or DEFAULT_MODEL)
        if model not in self.models and not self.tasks(model):
            state = self.state(model)
            raise Overloaded(f"the model {model!r:.100} is {state}", param="model")
        if model in able:
            pipeline = await self.pipeline(model, task)
            name = model if adapter is None or target.model is None else target.model
            return ResolvedTarget(model, pipeline, refs, name)
        tasks = ", ".join(self.tasks(model)) or "no task of this server"
        hint = f"; use {', '.join(usable)}" if usable else ""
        raise Unsupported(f"{model} supports {tasks}, not {task}{hint}", param="model")

    def tasks(self, model: str) -> Sequence[str]:
        """The tasks of a model that requests may use, the default first.

        A model that is loaded on demand has them before it is loaded.
        """
        if model in self.models:
            return tuple(self.models[model])
        return () if self.manager is None else self.manager.tasks(model)

    def state(self, model: str) -> str:
        """Whether a model is "loaded", "loading", "unloaded" or "failed"."""
        if self.manager is not None:
            return self.manager.state(model)
        return "loaded" if model in self.models else "loading"

    async def pipeline(self, model: str, task: str) -> TaskPipeline:
        """Return the pipeline of a model that stays loaded until the client's request ends.

        Raises Overloaded if it cannot be loaded now.
        """
        if (own := CLAIM.get()) is not None:
            self.held[model] += 1
            own.releases.append(partial(self.held.subtract, [model]))
        if self.manager is not None:
            self.manager.models[model].used = time.monotonic()
            await self.manager.ensure(model)
        return self.models[model][task]

    def task_of(self, target: ModelTarget, tasks: Sequence[T], caller: Caller = ANYONE) -> T:
        """Return the first of some tasks that the model of a request supports.

        For a request without a model, a model that the caller may use must support it. Returns the
        first task if there is none, so that `admit` raises the error. Raises NotFound.
        """
        model, _ = self.locate(target.model, caller)
        usable = [each for each in self.names if caller.may_use(each)]
        names = usable if target.model in (None, DEFAULT_MODEL) else [model]
        supported = {task for name in names for task in self.tasks(name)}
        return next((task for task in tasks if task in supported), tasks[0])

    async def template(self, admitted: ResolvedTarget[TaskPipeline]) -> str | None:
        """Return the chat template of the request's only adapter, None without one."""
        if not admitted.adapters:
            return None
        if self.manager is not None:  # it may have been unloaded since it was admitted
            await self.manager.ensure(admitted.model)
        return await self.adapters.template(admitted.model, admitted.adapters)


Target = tuple[str, str | None]
"""A model, and the adapter that a name selects."""


def target_of(service: Service, name: str) -> Target | None:
    """Return the model and the adapter of a name as it is written; None for an unknown name.

    The adapter of "model:adapter" may be unknown.
    """
    named = {DEFAULT_MODEL: service.name, **{each: each for each in service.names}}
    named |= {alias: model for alias, model in service.aliases.items() if alias != EVERY_NAME}
    if name in named:
        return named[name], None
    for known in sorted(named, key=len, reverse=True):
        if name.startswith(f"{known}:"):
            return named[known], name.removeprefix(f"{known}:")
    owners = (model for model in service.names if name in service.adapters.of(model))
    return next(((model, name) for model in owners), None)


def exists(service: Service, target: Target | None) -> bool:
    """Whether there are the model and the adapter of a target."""
    if target is None:
        return False
    model, adapter = target
    return adapter is None or adapter in service.adapters.of(model)
