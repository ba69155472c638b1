"""State of the server: the models it serves, their adapters, and the engine client."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ostro.core.engine.request import DEFAULT, AdapterRef
from ostro.core.errors import AdapterNotFound, NotFound, Overloaded, Unsupported, nearest
from ostro.core.ipc.client import AsyncEngine
from ostro.core.pipeline import ModelTarget
from ostro.entrypoints.operations.adapters import Adapters, adapter_refs
from ostro.entrypoints.operations.caller import ANYONE, Caller


@dataclass(frozen=True)
class Admitted:
    """An accepted request: its model, pipeline and adapters. The response contains `name`."""

    model: str
    pipeline: Any
    adapters: tuple[AdapterRef, ...]
    name: str


class Service:
    """The state of a server. `models` maps names to pipelines by task; it is empty until ready."""

    def __init__(self, engine: AsyncEngine, *names: str, resolves: bool = False) -> None:
        """names: of all models, the default first. resolves: treat unknown names as adapters of the
        default model, which adapter resolvers find.
        """
        self.engine, self.names, self.resolves = engine, names, resolves
        self.models: dict[str, Mapping[str, Any]] = {}
        self.adapters = Adapters(engine)
        self.takes_media = False  # whether chats may contain images, videos and audio
        self.behind = False  # whether a restarted engine still lacks the adapters
        self.started = int(time.time())

    @property
    def name(self) -> str:
        """The name of the default model."""
        return self.names[0]

    @property
    def ready(self) -> bool:
        """Whether the server accepts requests."""
        return self.engine.ready and not self.behind and bool(self.models)

    async def refresh_adapters(self) -> None:
        """Update the list of adapters of all models from the engine."""
        for name in self.names:
            with suppress(AdapterNotFound):  # the model does not support adapters
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
        """Return the model of a name, and the adapter if the name is "adapter" or "model:adapter".

        Raises NotFound for an unknown name; it lists what the caller may use.
        """
        if name is None or name == DEFAULT:
            return self.name, None
        if name in self.names:
            return name, None
        for known in sorted((*self.names, DEFAULT), key=len, reverse=True):
            if name.startswith(f"{known}:"):
                model = known if known in self.names else self.name
                return model, name.removeprefix(f"{known}:")
        for model in self.names:
            if name in self.adapters.of(model):
                return model, name
        if self.resolves:
            return self.name, name
        raise self.unknown(name, caller)

    def unknown(self, name: str, caller: Caller = ANYONE) -> NotFound:
        models = [model for model in self.names if caller.may_use(model)]
        known = ", ".join(repr(known) for known in models)
        adapters = [each for model in models for each in self.adapters.of(model)]
        near = nearest(name[:200], filter(caller.may_apply, adapters))
        return NotFound(
            f"model {name!r:.100} not found; available: {known} and {DEFAULT!r}"
            + near.replace("nearest", "nearest adapters"),
            param="model",
        )

    def admit(self, target: ModelTarget, task: str = "text", caller: Caller = ANYONE) -> Admitted:
        """Select the model, pipeline and adapters of a caller's request.

        A request without a model gets the first model that supports the task and that the caller
        may use. Raises NotFound for
        an unknown name, Forbidden if the caller may not use it, Unsupported if the model does not
        support the task, RequestError for malformed adapters, Overloaded while the server is busy
        or loading, and EngineDied.
        """
        model, adapter = self.locate(target.model, caller)
        refs = adapter_refs(target, adapter)
        self.engine.admit()
        if not self.models:
            raise Overloaded("the model is still loading; see /ready")
        able = [each for each in self.names if task in self.models[each]]
        usable = [each for each in able if caller.may_use(each)]
        if model not in usable and usable and target.model in (None, DEFAULT):
            model = usable[0]
        caller.check(model, (ref.name or ref.generation for ref in refs))
        if model in able:
            pipeline = self.models[model][task]
            name = model if adapter is None or target.model is None else target.model
            return Admitted(model, pipeline, refs, name)
        tasks = ", ".join(self.models[model]) or "no task of this server"
        hint = f"; use {', '.join(usable)}" if usable else ""
        raise Unsupported(f"{model} supports {tasks}, not {task}{hint}", param="model")

    async def template(self, admitted: Admitted) -> str | None:
        """Return the chat template of the request's only adapter, None without one."""
        if not admitted.adapters:
            return None
        return await self.adapters.template(admitted.model, admitted.adapters)
