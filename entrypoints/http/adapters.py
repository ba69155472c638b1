"""The server's copy of adapter names, generations and chat templates; adapters of requests."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import isfinite

from ostro.core.engine.request import AdapterRef
from ostro.core.errors import AdapterError, AdapterNameRefused, RequestError
from ostro.core.ipc.client import AsyncEngine
from ostro.core.ipc.messages import AdapterInfo
from ostro.core.pipeline import AdapterChoice, ModelTarget

log = logging.getLogger(__name__)

MOST = 16
"""Limit on the number of adapters in one request."""
LONGEST = 128
"""Limit on the length of a name, in characters."""
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
        self.known[model] = {facts.name: facts for facts in reported}
        self.templates |= {facts.generation: facts.template for facts in reported if facts.loaded}
        alive = {facts.generation for each in self.known.values() for facts in each.values()}
        self.templates = {g: text for g, text in self.templates.items() if g in alive}

    async def refresh(self, model: str) -> None:
        """Update from the engine. Raises EngineDied, and Overloaded before it is ready."""
        self.note(model, await self.engine.adapt("list", model=model))

    async def restore(self, model: str, before: Mapping[str, AdapterInfo]) -> None:
        """Register the adapters that existed `before` with a restarted engine.

        The engine loads each at its first use, and rejects it if its files have changed.
        """
        now = self.of(model)
        same = {n for n in before.keys() & now if before[n].reference == now[n].reference}
        changes = [dict(do="unload", name=name) for name in now.keys() - same] + [
            dict(
                do="register",
                name=name,
                reference=before[name].reference,
                expected=before[name].generation,
                pinned=before[name].pinned,
            )
            for name in before.keys() - same
        ]
        for change in changes:
            try:
                self.note(model, await self.engine.adapt(model=model, **change))
            except AdapterError as error:  # a request has registered it meanwhile
                log.warning("%s", error)

    async def template(self, model: str, wanted: Sequence[AdapterRef]) -> str | None:
        """The chat template of a request's adapter; None without one, and for several adapters.

        Loads the adapter if its template is unknown. Raises AdapterError if that fails.
        """
        if len(wanted) != 1 or not wanted[0].scale:
            return None
        if self.generation(model, wanted[0]) not in self.templates:
            self.note(model, await self.engine.adapt("read", model=model, name=wanted[0].name))
        return self.templates.get(self.generation(model, wanted[0]))

    def generation(self, model: str, wanted: AdapterRef) -> str:
        """The generation that a request selects, "" if it is unknown."""
        facts = self.of(model).get(wanted.name)
        return wanted.generation or ("" if facts is None else facts.generation)


def wanted_of(asked: ModelTarget, own: str | None = None) -> tuple[AdapterRef, ...]:
    """The adapters of a request. `own` is the adapter in its field `model`.

    Raises RequestError for a malformed adapter, for too many, and for duplicates.
    """
    choices = [] if own is None else [chosen(own, "model")]
    choices += [chosen(each, "adapters") for each in asked.adapters or ()]
    choices += [] if asked.adapter is None else [chosen(asked.adapter, "adapter")]
    if len(choices) > MOST:
        raise RequestError(f"got {len(choices)} adapters; the limit is {MOST}", param="adapters")
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


def chosen(given: str | AdapterChoice, param: str) -> AdapterRef:
    """Convert an adapter of a request. Raises RequestError if it is malformed."""
    choice = AdapterChoice(name=given) if isinstance(given, str) else given
    name, generation = choice.name, choice.generation
    if (name is None) == (generation is None):
        raise RequestError(f"{param}: expected either a name or a generation", param=param)
    if name is not None and not 0 < len(name) <= LONGEST:
        raise AdapterNameRefused(
            f"{param}: expected a name of 1 to {LONGEST} characters, got {len(name)}", param=param
        )
    if generation is not None and not (len(generation) == 64 and HEX.issuperset(generation)):
        raise RequestError(
            f"{param}: expected a generation of 64 hexadecimal digits (0-9, a-f)", param=param
        )
    scale = 1.0 if choice.scale is None else choice.scale
    if not isfinite(scale):
        raise RequestError(f"{param}: the scale {scale} is not finite", param=param)
    return AdapterRef(name=name or "", generation=generation or "", scale=scale)
