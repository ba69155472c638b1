"""What a server serves: models under names, through an engine that may not be ready yet."""

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
from ostro.entrypoints.http.adapters import Adapters, wanted_of
from ostro.entrypoints.http.body import MAX_BYTES

BODY_SLACK = 1 << 20
"""Bytes of a JSON body for tools, options and whatever else is not a prompt."""
TOKEN_BYTES = 4
"""Bytes of text per token, as usual in English."""
PROMPT_FACTOR = 8
"""How much longer than usual a single prompt may be: escapes in JSON, white space."""


@dataclass(frozen=True)
class Admitted:
    """What does a request: a model's pipeline, under adapters. The answer calls it `name`."""

    model: str
    pipeline: Any
    adapters: tuple[AdapterRef, ...]
    name: str


class Service:
    """The state of a server. `models` are the pipelines of each, by task, once it is ready."""

    def __init__(self, engine: AsyncEngine, *names: str, resolves: bool = False) -> None:
        """`names` are those of all models, the default one first; `resolves`: names that nobody
        knows are adapters of the first, which the engine is to find.
        """
        self.engine, self.names, self.resolves = engine, names, resolves
        self.models: dict[str, Mapping[str, Any]] = {}
        self.adapters = Adapters(engine)
        self.takes_media = False  # whether chats may contain images, videos and audio
        self.behind = False  # the engine was started again, and knows less than the one before
        self.started = int(time.time())

    @property
    def name(self) -> str:
        """The name of the default model."""
        return self.names[0]

    @property
    def ready(self) -> bool:
        """Whether a request would be answered now."""
        return self.engine.ready and not self.behind and bool(self.models)

    def max_body(self, prompts: int = 1) -> int:
        """Bytes that the JSON body of a request with that many prompts may have.

        The limit grows with the largest context. Chats with media may need all of `MAX_BYTES`.
        """
        info = self.engine.info
        if self.takes_media or info is None:
            return MAX_BYTES
        context = max(facts.context for facts in info.models.values())
        text = TOKEN_BYTES * context * max(prompts, PROMPT_FACTOR)
        return min(MAX_BYTES, BODY_SLACK + text)

    async def learn(self) -> None:
        """Ask the engine for the adapters of all models; some take none."""
        for name in self.names:
            with suppress(AdapterNotFound):
                await self.adapters.refresh(name)

    async def restore(self) -> None:
        """Have an engine that was started again know the adapters that the one before it knew."""
        before = dict(self.adapters.known)
        await self.learn()
        for name, known in before.items():
            await self.adapters.restore(name, known)
        self.takes_media = False  # whether chats may contain images, videos and audio
        self.behind = False

    def model(self, name: str | None) -> str:
        """The model that goes by a name. Raises NotFound where none does."""
        model, adapter = self.locate(name)
        if adapter is not None:
            raise self.unknown(name or "")
        return model

    def locate(self, name: str | None) -> tuple[str, str | None]:
        """The model that a name means, and the adapter where it means one of that: "adapter", or
        "model:adapter". Raises NotFound where it means neither.
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
        raise self.unknown(name)

    def unknown(self, name: str) -> NotFound:
        known = ", ".join(repr(known) for known in self.names)
        adapters = [each for model in self.names for each in self.adapters.of(model)]
        near = nearest(name[:200], adapters)
        return NotFound(
            f"there is no model {name!r:.100}; {known} and {DEFAULT!r} are served"
            + near.replace("nearest", "nearest adapters"),
            param="model",
        )

    def admit(self, asked: ModelTarget, task: str = "text") -> Admitted:
        """Who does a request's task; the first model that can, where it names none.

        Raises NotFound for an unknown name, Unsupported for a model that does something else,
        RequestError for what names no adapters, Overloaded when no request can be taken now, and
        EngineDied when none ever can.
        """
        model, adapter = self.locate(asked.model)
        wanted = wanted_of(asked, adapter)
        self.engine.admit()
        if not self.models:
            raise Overloaded("the model is still loading; see /ready")
        able = [each for each in self.names if task in self.models[each]]
        if model not in able and able and asked.model in (None, DEFAULT):
            model = able[0]
        if model in able:
            pipeline = self.models[model][task]
            name = model if adapter is None or asked.model is None else asked.model
            return Admitted(model, pipeline, wanted, name)
        does = ", ".join(self.models[model]) or "nothing that this server answers"
        hint = f"; {', '.join(able)} would" if able else ""
        raise Unsupported(f"{model} does {does}, not {task}{hint}", param="model")

    async def template(self, admitted: Admitted) -> str | None:
        """The chat template of the one adapter that a request asks for, where it brings one."""
        if not admitted.adapters:
            return None
        return await self.adapters.template(admitted.model, admitted.adapters)
