"""The server's copy of adapter names, generations and chat templates; adapters of requests."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import isfinite

from ostro.core.errors import AdapterError, AdapterNameRefused, RequestError
from ostro.core.ipc.client import AsyncEngine
from ostro.core.messages.commands import (
    AdapterCommand,
    AdapterInfo,
    ListAdapters,
    ReadAdapter,
    RegisterAdapter,
    UnloadAdapter,
)
from ostro.core.messages.requests import AdapterRef
from ostro.core.messages.target import AdapterChoice, ModelTarget

log = logging.getLogger(__name__)

MAX_ADAPTERS = 16
"""Limit on the number of adapters in one request."""
MAX_NAME = 128
"""Limit on the length of an adapter's name, in characters."""
HEX = frozenset("0123456789abcdef")


class Adapters:
    """The adapters of every model by name, as the engine last reported them.

    `templates` maps generations to chat templates, None for an adapter without one. It keeps the
    template of an adapter that the engine has evicted, because the engine reports those of loaded
    adapters only.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.known: dict[str, dict[str, AdapterInfo]] = {}
        self.templates: dict[str, str | None] = {}

    def of(self, model: str) -> Mapping[str, AdapterInfo]:
        """The adapters of a model by name."""
        return self.known.get(model, {})

    def note(self, model: str, reported: Sequence[AdapterInfo]) -> None:
        """Replace the adapters of a model by those that the engine reports."""
        self.known[model] = {info.name: info for info in reported}
        self.templates |= {info.generation: info.template for info in reported if info.loaded}
        alive = {info.generation for each in self.known.values() for info in each.values()}
        self.templates = {g: text for g, text in self.templates.items() if g in alive}

    async def refresh(self, model: str) -> None:
        """Update from the engine. Raises EngineDied, and Overloaded before it is ready."""
        self.note(model, await self.engine.adapt(ListAdapters(model=model)))

    async def restore(self, model: str, before: Mapping[str, AdapterInfo]) -> None:
        """Register the adapters that existed `before` with a restarted engine.

        The engine loads each at its first use, and rejects it if its files have changed.
        """
        now = self.of(model)
        same = {n for n in before.keys() & now if before[n].reference == now[n].reference}
        changes: list[AdapterCommand] = [
            UnloadAdapter(model=model, name=name) for name in now.keys() - same
        ]
        changes += [
            RegisterAdapter(
                model=model,
                name=name,
                reference=before[name].reference,
                generation=before[name].generation or None,
                pinned=before[name].pinned,
            )
            for name in before.keys() - same
        ]
        for change in changes:
            try:
                self.note(model, await self.engine.adapt(change))
            except AdapterError as error:  # a request has registered it meanwhile
                log.warning("%s", error)

    async def template(self, model: str, refs: Sequence[AdapterRef]) -> str | None:
        """The chat template of a request's adapter; None without one, and for several adapters.

        Loads the adapter if its template is unknown. Raises AdapterError if that fails.
        """
        if len(refs) != 1 or not refs[0].scale:
            return None
        if self.generation(model, refs[0]) not in self.templates:
            read = ReadAdapter(model=model, name=refs[0].name)
            self.note(model, await self.engine.adapt(read))
        return self.templates.get(self.generation(model, refs[0]))

    def generation(self, model: str, refs: AdapterRef) -> str:
        """The generation that a request selects, "" if it is unknown."""
        info = self.of(model).get(refs.name)
        return refs.generation or ("" if info is None else info.generation)


def adapter_refs(target: ModelTarget, own: str | None = None) -> tuple[AdapterRef, ...]:
    """The adapters of a request. `own` is the adapter in its field `model`.

    Raises RequestError for a malformed adapter, for too many, and for duplicates.
    """
    choices = [] if own is None else [adapter_ref(own, "model")]
    choices += [adapter_ref(each, "adapters") for each in target.adapters or ()]
    choices += [] if target.adapter is None else [adapter_ref(target.adapter, "adapter")]
    if len(choices) > MAX_ADAPTERS:
        raise RequestError(
            f"got {len(choices)} adapters; the limit is {MAX_ADAPTERS}", param="adapters"
        )
    seen: set[str] = set()
    for each in choices:
        key = each.name or each.generation
        if key in seen:
            raise RequestError(
                f"duplicate adapter {key!r}; request it once, with the sum of the scales",
                param="adapters",
            )
        seen.add(key)
    return tuple(choices)


def adapter_ref(given: str | AdapterChoice, param: str) -> AdapterRef:
    """Convert an adapter of a request. Raises RequestError if it is malformed."""
    choice = AdapterChoice(name=given) if isinstance(given, str) else given
    name, generation = choice.name, choice.generation
    if (name is None) == (generation is None):
        raise RequestError(f"{param}: expected either a name or a generation", param=param)
    if name is not None and not 0 < len(name) <= MAX_NAME:
        raise AdapterNameRefused(
            f"{param}: expected a name of 1 to {MAX_NAME} characters, got {len(name)}", param=param
        )
    if generation is not None and not (len(generation) == 64 and HEX.issuperset(generation)):
        raise RequestError(
            f"{param}: expected a generation of 64 hexadecimal digits (0-9, a-f)", param=param
        )
    scale = 1.0 if choice.scale is None else choice.scale
    if not isfinite(scale):
        raise RequestError(f"{param}: the scale {scale} is not finite", param=param)
    return AdapterRef(name=name or "", generation=generation or "", scale=scale)
