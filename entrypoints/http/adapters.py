"""What a server knows of adapters: which there are, what requests ask for, their chat templates."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import isfinite

from ostro.core.engine.request import AdapterRef
from ostro.core.errors import AdapterError, AdapterNameRefused, RequestError
from ostro.core.ipc.client import AsyncEngine
from ostro.core.ipc.messages import AdapterInfo
from ostro.core.text import AdapterChoice, ModelTarget

log = logging.getLogger(__name__)

MOST = 16
"""Adapters of one request."""
LONGEST = 128
"""Characters of a name."""
HEX = frozenset("0123456789abcdef")


class Adapters:
    """The adapters of every model by name, as the engine last told them.

    `templates` are the chat templates that they bring, None for none, by the generations that have
    been read: the engine tells of an adapter's template only while it keeps it.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.known: dict[str, dict[str, AdapterInfo]] = {}
        self.templates: dict[str, str | None] = {}

    def of(self, model: str) -> Mapping[str, AdapterInfo]:
        """Those of a model, by name."""
        return self.known.get(model, {})

    def note(self, model: str, told: Sequence[AdapterInfo]) -> None:
        """Take in what the engine tells of a model's adapters."""
        self.known[model] = {facts.name: facts for facts in told}
        self.templates |= {facts.generation: facts.template for facts in told if facts.loaded}
        alive = {facts.generation for each in self.known.values() for facts in each.values()}
        self.templates = {g: text for g, text in self.templates.items() if g in alive}

    async def refresh(self, model: str) -> None:
        """Ask the engine. Raises EngineDied, and Overloaded before it is ready."""
        self.note(model, await self.engine.adapt("list", model=model))

    async def restore(self, model: str, before: Mapping[str, AdapterInfo]) -> None:
        """Have an engine that was started again know the adapters that there were `before`. They
        are read when they are asked for, and refused where their files have changed since.
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
            except AdapterError as error:  # somebody was faster
                log.warning("%s", error)

    async def template(self, model: str, wanted: Sequence[AdapterRef]) -> str | None:
        """The chat template of the one adapter that a request asks for, where it brings one.

        Has the engine read an adapter that it has not read yet; raises the AdapterError of one that
        cannot be.
        """
        if len(wanted) != 1 or not wanted[0].scale:
            return None
        if self.generation(model, wanted[0]) not in self.templates:
            self.note(model, await self.engine.adapt("read", model=model, name=wanted[0].name))
        return self.templates.get(self.generation(model, wanted[0]))

    def generation(self, model: str, wanted: AdapterRef) -> str:
        """The generation that is asked for; "" where it is not known."""
        facts = self.of(model).get(wanted.name)
        return wanted.generation or ("" if facts is None else facts.generation)


def wanted_of(asked: ModelTarget, own: str | None = None) -> tuple[AdapterRef, ...]:
    """The adapters of a request, `own` being the one that its model names.

    Raises RequestError for what is no adapter, for too many, and for one that is named twice.
    """
    choices = [] if own is None else [chosen(own, "model")]
    choices += [chosen(each, "adapters") for each in asked.adapters or ()]
    choices += [] if asked.adapter is None else [chosen(asked.adapter, "adapter")]
    if len(choices) > MOST:
        raise RequestError(f"{len(choices)} adapters; at most {MOST}", param="adapters")
    seen: set[str] = set()
    for each in choices:
        key = each.name or each.generation
        if key in seen:
            raise RequestError(
                f"the adapter {key!r} is asked for twice; add its scales up", param="adapters"
            )
        seen.add(key)
    return tuple(choices)


def chosen(given: str | AdapterChoice, param: str) -> AdapterRef:
    """An adapter as the engine is asked for it. Raises RequestError for what is none."""
    choice = AdapterChoice(name=given) if isinstance(given, str) else given
    name, generation = choice.name, choice.generation
    if (name is None) == (generation is None):
        raise RequestError(f"{param}: give an adapter's name or its generation", param=param)
    if name is not None and not 0 < len(name) <= LONGEST:
        raise AdapterNameRefused(
            f"{param}: an adapter's name has 1..{LONGEST} characters, not {len(name)}", param=param
        )
    if generation is not None and not (len(generation) == 64 and HEX.issuperset(generation)):
        raise RequestError(f"{param}: a generation is 64 digits of 0-9 and a-f", param=param)
    if not isfinite(choice.scale):
        raise RequestError(f"{param}: the scale {choice.scale} is not finite", param=param)
    return AdapterRef(name=name or "", generation=generation or "", scale=choice.scale)
