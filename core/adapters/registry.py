"""The registry: names of adapters, the generations that they go to, and how they come and go.

An *alias* is a name that goes to a generation, which is what its files hold. It is read in a thread
of its own, so that nobody waits but who asks for it, and switched to between two passes of the
engine's loop. A sequence keeps the generation that it began with, whatever its alias goes to later.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from ostro.core.adapters.adapter import EMPTY, LoadedAdapter, Mixture, WeightedAdapter
from ostro.core.adapters.loader import AdapterLoader, check_mixture
from ostro.core.adapters.weights import AdapterWeights
from ostro.core.engine.request import AdapterRef
from ostro.core.errors import (
    AdapterBusy,
    AdapterConflict,
    AdapterError,
    AdapterLimit,
    AdapterNameRefused,
    AdapterNotFound,
    OstroError,
    RequestError,
    nearest,
)
from ostro.core.ipc.messages import AdapterInfo

log = logging.getLogger(__name__)

LONGEST = 128
"""Characters of a name."""

Probe = Callable[[LoadedAdapter], float | None]
"""How much an adapter changes what the model says, between 0 and about 1; None if not known."""


@dataclass(eq=False)
class Alias:
    """A name, where its adapter comes from, and the generation that it goes to, once read."""

    name: str
    reference: str
    generation: str | None = None
    pinned: bool = False
    reading: Future[LoadedAdapter] | None = None
    requests: int = 0


@dataclass(eq=False)
class PendingLoad:
    """A load that was asked for, and who is told of its end."""

    alias: Alias
    reading: Future[LoadedAdapter]
    done: Callable[[OstroError | None], None]
    expected: str | None = None


@dataclass
class WaitingRequest:
    """A request whose adapters are being read, and what is done with it then.

    `held` are the generations that have been read for it: they stay until it goes.
    """

    aliases: list[Alias]
    held: set[str]
    go: Callable[[], None]
    fail: Callable[[OstroError], None]


class Registry:
    """The adapters of one model."""

    def __init__(self, loader: AdapterLoader, probe: Probe, *, most: int, host_bytes: int) -> None:
        """At most `most` names; `host_bytes` of adapters are kept that nobody runs."""
        self.loader, self.probe, self.most, self.host_bytes = loader, probe, most, host_bytes
        self.aliases: dict[str, Alias] = {}
        self.store: OrderedDict[str, LoadedAdapter] = OrderedDict()
        self.reader = ThreadPoolExecutor(1, "ostro-adapters")
        self.change: PendingLoad | None = None
        self.waiting: list[WaitingRequest] = []
        self.leases: Counter[str] = Counter()

    # Names

    def register(
        self, name: str, reference: str, *, generation: str | None = None, pinned: bool = False
    ) -> Alias:
        """A name that is read when it is first asked for, and is then of the `generation`, where
        that is known. Raises AdapterError.
        """
        check_name(name)
        if name in self.aliases:
            raise AdapterConflict(f"there is an adapter {name!r} already", param="lora_name")
        self.make_way()
        self.aliases[name] = Alias(name, reference, generation, pinned)
        return self.aliases[name]

    def make_way(self) -> None:
        if len(self.aliases) >= self.most:
            raise AdapterLimit(
                f"{self.most} adapters are registered; unload one, or start with a larger "
                "--max-adapters"
            )

    def register_folder(self, folder: Path) -> int:
        """Every folder in it is an adapter by its own name; gives how many there are."""
        found = [entry for entry in sorted(folder.iterdir()) if entry.is_dir()]
        for entry in found:
            self.register(entry.name, str(entry))
        return len(found)

    def find(self, name: str) -> Alias:
        """The alias of a name. Raises AdapterNotFound."""
        if alias := self.aliases.get(name):
            return alias
        raise AdapterNotFound(
            f"there is no adapter {name!r:.100}{nearest(name, self.aliases)}", param="adapters"
        )

    def facts(self, *, norms: bool = False) -> list[AdapterInfo]:
        """What is known of every name; with `norms` of what it adds to each weight."""
        return [self.describe(alias, norms) for alias in self.aliases.values()]

    def describe(self, alias: Alias, norms: bool) -> AdapterInfo:
        generation = alias.generation or ""
        facts = AdapterInfo(
            name=alias.name,
            reference=alias.reference,
            generation=generation,
            pinned=alias.pinned,
            requests=alias.requests,
            running=self.leases[generation],
        )
        adapter = self.store.get(generation)
        if adapter is None:
            return facts
        facts.loaded, facts.resident = True, generation in self.loader.adapter_pool.here
        facts.kind, facts.rank, facts.base = adapter.kind, adapter.rank, adapter.base
        facts.nbytes, facts.effect = adapter.nbytes, adapter.effect
        facts.modules, facts.norms = len(adapter.matched), dict(adapter.norms) if norms else {}
        facts.invocation, facts.template = list(adapter.invocation), adapter.template
        return facts

    # Coming and going

    def load(
        self,
        name: str,
        reference: str,
        done: Callable[[OstroError | None], None],
        *,
        inplace: bool = False,
        expected: str | None = None,
        pinned: bool = False,
    ) -> None:
        """Read an adapter and have a name go to it; `done` is told when it does, or why not.

        Raises AdapterConflict for a name that is taken, unless `inplace`, and for one that does not
        go to the `expected` generation; AdapterBusy while another is being loaded.
        """
        check_name(name)
        known = self.aliases.get(name)
        if known is not None and not inplace:
            raise AdapterConflict(
                f"there is an adapter {name!r} already; unload it, or load with load_inplace",
                param="lora_name",
            )
        self.check_expected(known, name, expected)
        if self.change is not None:
            raise AdapterBusy(f"{self.change.alias.name!r} is being loaded; try again")
        if known is None:
            self.make_way()
        alias = Alias(name, reference, pinned=pinned)
        reading = self.reader.submit(self.loader.read, reference)
        self.change = PendingLoad(alias, reading, done, expected)

    def add(self, name: str, weights: AdapterWeights, *, inplace: bool = False) -> str:
        """Have a name go to an adapter that is in memory already; gives its generation.

        Raises AdapterError as `load` does.
        """
        check_name(name)
        if name in self.aliases and not inplace:
            raise AdapterConflict(f"there is an adapter {name!r} already", param="lora_name")
        alias, adapter = Alias(name, "memory"), self.loader.make(weights)
        self.keep(alias, adapter)
        before = self.aliases.get(name)
        self.aliases[name] = alias
        if before is not None and before.generation != alias.generation:
            self.drop(before.generation)
        return adapter.generation

    def check_expected(self, known: Alias | None, name: str, expected: str | None) -> None:
        """Raise AdapterConflict where a name does not go to what is expected."""
        found = None if known is None else known.generation
        if expected is not None and found != expected:
            raise AdapterConflict(
                f"{name!r} goes to generation {found}, expected was {expected:.64}",
                param="expected_generation",
            )

    def unload(self, name: str, expected: str | None = None) -> None:
        """Forget a name; what runs with its generation goes on to its end."""
        alias = self.find(name)
        self.check_expected(alias, name, expected)
        del self.aliases[name]
        self.drop(alias.generation)

    def drop(self, generation: str | None) -> None:
        """Let go of a generation that no name goes to and nobody runs."""
        if generation is None or self.leases[generation]:
            return
        if any(alias.generation == generation for alias in self.aliases.values()):
            return
        self.loader.adapter_pool.pinned.discard(generation)
        if adapter := self.store.pop(generation, None):
            for each in (adapter, *adapter.members):
                self.loader.adapter_pool.forget(each.generation)

    @property
    def busy(self) -> bool:
        """Whether something is being read that somebody waits for."""
        return self.change is not None or bool(self.waiting)

    def poll(self) -> None:
        """Switch to what has been read since the last pass."""
        awaited = [alias for each in self.waiting for alias in each.aliases]
        for alias in dict.fromkeys((*self.aliases.values(), *awaited)):
            if alias.reading is not None and alias.reading.done():
                reading, alias.reading = alias.reading, None
                self.settle(alias, reading)
        if self.change is not None and self.change.reading.done():
            change, self.change = self.change, None
            self.switch(change)

    def settle(self, alias: Alias, reading: Future[LoadedAdapter]) -> None:
        """An alias was read for requests that wait for it: they go, or fail. Where its name was
        taken from it meanwhile, they are told, or go with what has the name now.
        """
        waiting = [each for each in self.waiting if alias in each.aliases]
        try:
            if self.aliases.get(alias.name) is alias:
                adapter = reading.result()
                if alias.generation not in (None, adapter.generation):
                    raise AdapterConflict(
                        f"the files of {alias.name!r} have changed since they were first read; "
                        "load it again with load_inplace"
                    )
                self.keep(alias, adapter)
                for each in waiting:
                    each.held.add(adapter.generation)
        except Exception as error:
            told = as_error(error, alias.name)
            self.waiting = [each for each in self.waiting if each not in waiting]
            for each in waiting:
                each.fail(told)
            return
        for each in waiting:
            each.aliases.remove(alias)
        ready = [each for each in waiting if not each.aliases]
        self.waiting = [each for each in self.waiting if each not in ready]
        for each in ready:
            each.go()

    def switch(self, change: PendingLoad) -> None:
        """An alias was read that is to take a name."""
        alias = change.alias
        try:
            adapter = change.reading.result()
            known = self.aliases.get(alias.name)
            self.check_expected(known, alias.name, change.expected)
            self.keep(alias, adapter)
        except Exception as error:
            change.done(as_error(error, alias.name))
            return
        self.aliases[alias.name] = alias
        if known is not None and known.generation != alias.generation:
            self.drop(known.generation)
        change.done(None)

    def keep(self, alias: Alias, adapter: LoadedAdapter) -> None:
        """Take an adapter that was read in, once it is shown to do something."""
        adapter_pool = self.loader.adapter_pool
        known = self.store.get(adapter.generation)
        if known is None:
            self.check_norms(alias, adapter)
            kept, changes = adapter_pool.attached, adapter_pool.changes
            try:
                # Attached before it is accepted: the probe computes with its tables.
                adapter_pool.attach(adapter)
                self.prove(alias, adapter)
            except Exception:
                adapter_pool.discard(adapter, kept, changes)
                raise
            self.store[adapter.generation] = adapter
        alias.generation = adapter.generation
        if alias.pinned:
            adapter_pool.pinned.update(each.generation for each in members(adapter))
        self.trim(adapter.generation)

    def check_norms(self, alias: Alias, adapter: LoadedAdapter) -> None:
        """Raise AdapterError for an adapter whose factors show that it is damaged or untrained."""
        if broken := [name for name, norm in adapter.norms.items() if not isfinite(norm)]:
            raise AdapterError(
                f"{alias.name!r}: {broken[0]} holds what is no number; train it again"
            )
        if not any(adapter.norms.values()) and not adapter.special:
            raise AdapterError(
                f"{alias.name!r} does nothing: every product of its factors is zero; it was saved "
                "before it was trained"
            )

    def prove(self, alias: Alias, adapter: LoadedAdapter) -> None:
        """Raise AdapterError for an attached adapter without effect."""
        adapter.effect = self.probe(adapter)
        if adapter.effect is not None and not isfinite(adapter.effect):
            raise AdapterError(f"with {alias.name!r} the model computes what is no number")
        if adapter.effect == 0:
            raise AdapterError(
                f"{alias.name!r} does nothing: the model says the same with it and without it"
            )

    def trim(self, newest: str) -> None:
        """Forget what was used longest ago, until the rest is within its bytes; it is read again
        when it is asked for.
        """
        self.store.move_to_end(newest)
        held = sum(adapter.nbytes for adapter in self.store.values())
        awaited = {newest}.union(*(each.held for each in self.waiting))
        for generation in list(self.store):
            if held <= self.host_bytes:
                return
            here = self.loader.adapter_pool.here
            if self.leases[generation] or generation in awaited or generation in here:
                continue
            held -= self.store.pop(generation).nbytes

    # Requests

    def ask(
        self,
        wanted: Sequence[AdapterRef],
        go: Callable[[], None],
        fail: Callable[[OstroError], None],
    ) -> WaitingRequest | None:
        """Have the adapters of a request read: `go` is called once they are, now or later.

        Raises AdapterError for those that do not exist. Gives what waits, to be dropped.
        """
        named = list(self.named(wanted))
        missing = [a for a in named if a.generation not in self.store]
        if not missing:
            go()
            return None
        for alias in missing:
            alias.reading = alias.reading or self.reader.submit(self.loader.read, alias.reference)
        held = {g for g in (*(a.generation for a in named), *(w.generation for w in wanted)) if g}
        waiting = WaitingRequest(list(dict.fromkeys(missing)), held, go, fail)
        self.waiting.append(waiting)
        return waiting

    def forget(self, waiting: WaitingRequest) -> None:
        """Whoever waited does not any more."""
        if waiting in self.waiting:
            self.waiting.remove(waiting)

    def named(self, wanted: Sequence[AdapterRef]) -> Iterator[Alias]:
        """The aliases that a request names. Raises AdapterNotFound."""
        for each in wanted:
            if each.generation:
                if each.generation not in self.store:
                    raise AdapterNotFound(
                        f"there is no adapter of generation {each.generation:.64}", param="adapter"
                    )
            elif each.name in self.aliases or not self.resolves(each.name):
                yield self.find(each.name)
            else:
                yield self.register(each.name, each.name)

    def resolves(self, name: str) -> bool:
        """Whether plugins may be asked for an unknown name; never for what lies on this machine."""
        return self.loader.settings.adapter_resolvers and not Path(name).exists()

    def mixture(self, wanted: Sequence[AdapterRef], tokens: Sequence[int] = ()) -> Mixture:
        """What a request asks for, all of it read; scales of one adapter add up.

        An adapter with invocation tokens applies from where these stand last among `tokens`; not
        at all where they do not. Raises AdapterError for mixtures that cannot be.
        """
        scales: dict[str, float] = {}
        for each in wanted:
            if not abs(each.scale) <= 100:
                raise RequestError(
                    f"the scale {each.scale} of an adapter is not within -100..100",
                    param="adapters",
                )
            generation = each.generation or self.find(each.name).generation or ""
            if generation not in self.store:
                raise AdapterNotFound(
                    f"the adapter {each.name or generation!r:.100} was unloaded while it was asked "
                    "for; ask again",
                    param="adapters",
                )
            scales[generation] = scales.get(generation, 0.0) + each.scale
        chosen = {g: s for g, s in scales.items() if s}
        adapters = [self.store[generation] for generation in chosen]
        check_mixture(adapters, list(chosen.values()))
        self.check_room(adapters)
        shares = []
        for adapter, scale in zip(adapters, chosen.values(), strict=True):
            self.store.move_to_end(adapter.generation)
            since = begins(adapter.invocation, tokens)
            if since is not None:
                shares.append(WeightedAdapter(adapter, scale, since))
        for each in wanted:
            if each.name:
                self.find(each.name).requests += 1
        return Mixture(tuple(shares)) if shares else EMPTY

    def check_room(self, adapters: Sequence[LoadedAdapter]) -> None:
        """Raise AdapterLimit for what pinned adapters leave no room for."""
        adapter_pool = self.loader.adapter_pool
        wanted = {each.generation: each.pages for a in adapters for each in members(a)}
        pinned = sum(
            resident.adapter.pages
            for generation, resident in adapter_pool.here.items()
            if generation in adapter_pool.pinned and generation not in wanted
        )
        if sum(wanted.values()) + pinned > adapter_pool.size:
            raise AdapterLimit(
                "pinned adapters leave no room on the device for these; start with more "
                "--adapter-slots"
            )

    def lease(self, mixture: Mixture) -> None:
        """A sequence begins with these generations."""
        self.leases.update(share.adapter.generation for share in mixture.shares)

    def release(self, mixture: Mixture) -> None:
        """It has ended."""
        for share in mixture.shares:
            generation = share.adapter.generation
            self.leases[generation] -= 1
            if not self.leases[generation]:
                del self.leases[generation]
                self.drop(generation)

    def close(self) -> None:
        """Stop reading, and leave the model as it was."""
        self.reader.shutdown(wait=False, cancel_futures=True)
        self.loader.adapter_pool.detach()


def members(adapter: LoadedAdapter) -> Sequence[LoadedAdapter]:
    """What lies on the device of it: itself, or its members."""
    return adapter.members or (adapter,)


def begins(invocation: Sequence[int], tokens: Sequence[int]) -> int | None:
    """Where the last of an adapter's invocations begins; 0 for an adapter that has none."""
    if not invocation:
        return 0
    size = len(invocation)
    for start in range(len(tokens) - size, -1, -1):
        if list(tokens[start : start + size]) == list(invocation):
            return start
    return None


def check_name(name: str) -> None:
    """Raise AdapterNameRefused for a name that could be a path, or that nobody can write."""
    plain = name.isprintable() and not any(mark in name for mark in "/\\:") and name.strip() == name
    if not plain or name in (".", "..") or not 0 < len(name) <= LONGEST:
        raise AdapterNameRefused(
            f"{name!r:.60} is no name for an adapter: up to {LONGEST} printable characters without "
            "/, \\ and :",
            param="lora_name",
        )


def as_error(error: Exception, name: str) -> OstroError:
    """What whoever asked is told."""
    if isinstance(error, OstroError):
        kind = type(error) if isinstance(error, AdapterError) else AdapterError
        return kind(f"the adapter {name!r}: {error}", param=error.param)
    log.exception("the adapter %r could not be read", name, exc_info=error)
    return AdapterError(f"the adapter {name!r} could not be read: {type(error).__name__}")
