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
from functools import partial
from math import isfinite
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from ostro.core.adapters.adapter import EMPTY, LoadedAdapter, Mixture, WeightedAdapter
from ostro.core.adapters.loader import AdapterLoader, check_mixture
from ostro.core.adapters.pool import AdapterPool
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
    """The command `id` to load an adapter; its alias replaces the one of its name once read."""

    id: str
    alias: Alias
    expected: str | None = None


@dataclass(eq=False)
class PendingRead:
    """The adapters that the request or command `id` waits for.

    `generations` have been read for it: the store keeps them until the request is submitted.
    """

    id: str
    aliases: list[Alias]
    generations: set[str]


class ReadResult(NamedTuple):
    """The end of what the request or command `id` waited for."""

    id: str
    error: OstroError | None = None


class Registry:
    """The adapters of one model. All methods belong to one thread; `wake` is called from another.

    A read that ends is put on the queue `finished`, then `wake` is called: it makes the owner of
    the registry call `poll` soon.
    """

    def __init__(
        self,
        loader: AdapterLoader,
        adapter_pool: AdapterPool,
        probe: Probe,
        *,
        most: int,
        host_bytes: int,
    ) -> None:
        """At most `most` names; `host_bytes` of adapters are kept that nobody runs."""
        self.loader, self.adapter_pool, self.probe = loader, adapter_pool, probe
        self.most, self.host_bytes = most, host_bytes
        self.aliases: dict[str, Alias] = {}
        self.store: OrderedDict[str, LoadedAdapter] = OrderedDict()
        self.reader = ThreadPoolExecutor(1, "ostro-adapters")
        self.finished: SimpleQueue[tuple[Alias, Future[LoadedAdapter]]] = SimpleQueue()
        self.wake: Callable[[], None] = lambda: None
        self.loading: PendingLoad | None = None
        self.waiting: dict[str, PendingRead] = {}
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
        facts.loaded, facts.resident = True, generation in self.adapter_pool.here
        facts.kind, facts.rank, facts.base = adapter.kind, adapter.rank, adapter.base
        facts.nbytes, facts.effect = adapter.nbytes, adapter.effect
        facts.modules, facts.norms = len(adapter.matched), dict(adapter.norms) if norms else {}
        facts.invocation, facts.template = list(adapter.invocation), adapter.template
        return facts

    # Coming and going

    def load(
        self,
        id: str,
        name: str,
        reference: str,
        *,
        inplace: bool = False,
        expected: str | None = None,
        pinned: bool = False,
    ) -> None:
        """Start to read an adapter that takes a name once it is read; `poll` yields the result of
        the command `id`.

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
        if self.loading is not None:
            raise AdapterBusy(f"{self.loading.alias.name!r} is being loaded; try again")
        if known is None:
            self.make_way()
        alias = Alias(name, reference, pinned=pinned)
        self.loading = PendingLoad(id, alias, expected)
        self.start_reading(alias)

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
        self.adapter_pool.pinned.discard(generation)
        if adapter := self.store.pop(generation, None):
            for each in (adapter, *adapter.members):
                self.adapter_pool.forget(each.generation)

    @property
    def busy(self) -> bool:
        """Whether a request or command waits for a read."""
        return self.loading is not None or bool(self.waiting)

    @property
    def has_finished(self) -> bool:
        """Whether a read has ended that `poll` has not handled yet."""
        return not self.finished.empty()

    def start_reading(self, alias: Alias) -> None:
        """Read an alias in the reader thread, unless it is being read already."""
        if alias.reading is None:
            alias.reading = self.reader.submit(self.loader.read, alias.reference)
            alias.reading.add_done_callback(partial(self.finish_reading, alias))

    def finish_reading(self, alias: Alias, reading: Future[LoadedAdapter]) -> None:
        """Called in the reader thread when a read ends."""
        # Queued before the call: the woken thread must find the read.
        self.finished.put((alias, reading))
        self.wake()

    def poll(self) -> Iterator[ReadResult]:
        """Handle the reads that have ended; yield the requests and commands that wait no more.

        The caller submits a request before it takes the next result: until then nothing leases
        the generations of the request, and a later read may evict them from the store.
        """
        while self.has_finished:
            alias, reading = self.finished.get()
            alias.reading = None
            if self.loading is not None and self.loading.alias is alias:
                yield self.finish_load(self.loading, reading)
            else:
                yield from self.settle(alias, reading)

    def settle(self, alias: Alias, reading: Future[LoadedAdapter]) -> Iterator[ReadResult]:
        """Store an adapter that was read for requests; yield those that wait for no other. If its
        name was removed meanwhile, or refers to another adapter, `mixture` decides.
        """
        waiting = [each for each in self.waiting.values() if alias in each.aliases]
        error: OstroError | None = None
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
                    each.generations.add(adapter.generation)
        except Exception as caught:
            error = as_error(caught, alias.name)
        for each in waiting:
            each.aliases.remove(alias)
            if error is not None or not each.aliases:
                del self.waiting[each.id]
                yield ReadResult(each.id, error)

    def finish_load(self, load: PendingLoad, reading: Future[LoadedAdapter]) -> ReadResult:
        """Store the adapter of a load command, and let its alias replace the one of its name."""
        self.loading, alias = None, load.alias
        try:
            adapter = reading.result()
            known = self.aliases.get(alias.name)
            self.check_expected(known, alias.name, load.expected)
            self.keep(alias, adapter)
        except Exception as error:
            return ReadResult(load.id, as_error(error, alias.name))
        self.aliases[alias.name] = alias
        if known is not None and known.generation != alias.generation:
            self.drop(known.generation)
        return ReadResult(load.id)

    def keep(self, alias: Alias, adapter: LoadedAdapter) -> None:
        """Take an adapter that was read in, once it is shown to do something."""
        adapter_pool = self.adapter_pool
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
        awaited = {newest}.union(*(each.generations for each in self.waiting.values()))
        for generation in list(self.store):
            if held <= self.host_bytes:
                return
            here = self.adapter_pool.here
            if self.leases[generation] or generation in awaited or generation in here:
                continue
            held -= self.store.pop(generation).nbytes

    # Requests

    def ensure_read(self, id: str, wanted: Sequence[AdapterRef]) -> bool:
        """Whether the adapters of the request `id` have been read. If not, they are read now, and
        `poll` yields the result. Raises AdapterError if one of them does not exist.
        """
        named = list(self.named(wanted))
        missing = list(dict.fromkeys(a for a in named if a.generation not in self.store))
        if not missing:
            return True
        for alias in missing:
            self.start_reading(alias)
        known = (*(alias.generation for alias in named), *(each.generation for each in wanted))
        self.waiting[id] = PendingRead(id, missing, {g for g in known if g})
        return False

    def cancel(self, id: str) -> None:
        """Wait no more for the request `id`. A read under way goes on to its end."""
        self.waiting.pop(id, None)

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
        adapter_pool = self.adapter_pool
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
        self.adapter_pool.detach()


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
