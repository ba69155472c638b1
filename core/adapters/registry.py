"""The adapter registry: names of adapters, and the reads that load them.

An *alias* maps a name to a generation: the identity of an adapter's contents. One thread reads
adapters; the engine's thread switches an alias between two steps. A sequence keeps the generation
that it began with, even if its alias is changed or removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from ostro.core.adapters.adapter import EMPTY, LoadedAdapter, Mixture, WeightedAdapter
from ostro.core.adapters.loader import AdapterLoader, check_mixture
from ostro.core.adapters.store import AdapterStore
from ostro.core.adapters.weights import AdapterWeights
from ostro.core.errors import (
    AdapterBusy,
    AdapterConflict,
    AdapterError,
    AdapterLimit,
    AdapterNameRefused,
    AdapterNotFound,
    OstroError,
    Overloaded,
    RequestError,
)
from ostro.core.messages.commands import AdapterInfo
from ostro.core.messages.requests import AdapterRef

log = logging.getLogger(__name__)

MAX_NAME = 128
"""Most characters of a name."""

MAX_SCALE = 100
"""Largest absolute scale of an adapter in a request."""


@dataclass(eq=False)
class AdapterName:
    """A name, the reference of its adapter, and the adapter's generation once it has been read.

    `reading` is the read under way, if any; `requests` is the number of requests by this name.
    """

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
    alias: AdapterName
    expected: str | None = None


@dataclass(eq=False)
class PendingRead:
    """The adapters that the request or command `id` waits for.

    `generations` have been read for it: the store keeps them until the request is submitted.
    """

    id: str
    aliases: list[AdapterName]
    generations: set[str]


class ReadResult(NamedTuple):
    """The request or command `id` waits no more; `error` if an adapter could not be loaded."""

    id: str
    error: OstroError | None = None


class Registry:
    """The adapters of one model by name. All methods belong to the engine's thread.

    The reader thread puts a read that ends on the queue `finished`, then calls `wake`, so that the
    engine's thread calls `poll` soon.
    """

    def __init__(self, loader: AdapterLoader, store: AdapterStore, *, max_adapters: int) -> None:
        self.loader, self.store, self.max_adapters = loader, store, max_adapters
        self.aliases: dict[str, AdapterName] = {}
        # One thread bounds the memory of reads: they load one adapter at a time.
        self.reader = ThreadPoolExecutor(1, "ostro-adapters")
        self.finished: SimpleQueue[tuple[AdapterName, Future[LoadedAdapter]]] = SimpleQueue()
        self.wake: Callable[[], None] = lambda: None
        self.loading: PendingLoad | None = None
        self.waiting: dict[str, PendingRead] = {}

    # Names

    def register(
        self, name: str, reference: str, *, generation: str | None = None, pinned: bool = False
    ) -> AdapterName:
        """Add a name whose adapter is read when it is first requested. If a `generation` is given,
        the adapter must have it then. Raises AdapterError.
        """
        check_name(name)
        self.check_new(name)
        self.check_count()
        self.aliases[name] = AdapterName(name, reference, generation, pinned)
        return self.aliases[name]

    def register_folder(self, folder: Path) -> int:
        """Register each folder inside a folder by its own name; returns their number."""
        found = [entry for entry in sorted(folder.iterdir()) if entry.is_dir()]
        for entry in found:
            self.register(entry.name, str(entry))
        return len(found)

    def find(self, name: str) -> AdapterName:
        """The alias of a name. Raises AdapterNotFound."""
        if alias := self.aliases.get(name):
            return alias
        # Without similar names: the caller may not be allowed to use them.
        raise AdapterNotFound(f"there is no adapter {name!r:.100}", param="adapters")

    def infos(self, *, norms: bool = False) -> list[AdapterInfo]:
        """A description of each adapter; with `norms` also the norm of its change per weight."""
        return [self.describe(alias, norms) for alias in self.aliases.values()]

    def describe(self, alias: AdapterName, norms: bool) -> AdapterInfo:
        """See `infos`."""
        generation = alias.generation or ""
        info = AdapterInfo(
            name=alias.name,
            reference=alias.reference,
            generation=generation,
            pinned=alias.pinned,
            requests=alias.requests,
            running=self.store.use_counts[generation],
        )
        adapter = self.store.adapters.get(generation)
        if adapter is None:
            return info
        info.loaded, info.resident = True, generation in self.store.adapter_pool.adapters
        info.kind, info.rank, info.base = adapter.kind, adapter.rank, adapter.base
        info.nbytes, info.effect = adapter.nbytes, adapter.effect
        info.modules, info.norms = len(adapter.matched), dict(adapter.norms) if norms else {}
        info.invocation, info.template = list(adapter.invocation), adapter.template
        return info

    def check_new(self, name: str) -> None:
        """Raise AdapterConflict for a name in use."""
        if name in self.aliases:
            raise AdapterConflict(
                f"there is an adapter {name!r} already; unload it, or load with load_inplace",
                param="lora_name",
            )

    def check_count(self) -> None:
        """Raise AdapterLimit if no further adapter can be registered."""
        if len(self.aliases) >= self.max_adapters:
            raise AdapterLimit(
                f"{self.max_adapters} adapters are registered; unload one, or start with a larger "
                "--max-adapters"
            )

    def check_expected(self, known: AdapterName | None, name: str, expected: str | None) -> None:
        """Raise AdapterConflict unless a name has the expected generation, if there is one."""
        found = None if known is None else known.generation
        if expected is not None and found != expected:
            raise AdapterConflict(
                f"adapter {name!r} is at generation {found}, expected {expected:.64}",
                param="expected_generation",
            )

    # Loading and unloading

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

        Raises AdapterConflict for a name in use, unless `inplace`, and for one that is not at the
        `expected` generation; AdapterBusy while another adapter is being loaded.
        """
        check_name(name)
        known = self.aliases.get(name)
        if not inplace:
            self.check_new(name)
        self.check_expected(known, name, expected)
        if self.loading is not None:
            raise AdapterBusy("another adapter is being loaded; try again")
        if known is None:
            self.check_count()
        # An alias of its own: requests by this name use the old adapter until the new one is read.
        alias = AdapterName(name, reference, pinned=pinned)
        self.loading = PendingLoad(id, alias, expected)
        self.start_reading(alias)

    def add(self, name: str, weights: AdapterWeights, *, inplace: bool = False) -> str:
        """Give a name to an adapter that is in memory; returns its generation.

        Raises AdapterError as `load` does.
        """
        check_name(name)
        if not inplace:
            self.check_new(name)
        alias, adapter = AdapterName(name, "memory"), self.loader.load(weights)
        self.add_to_store(alias, adapter)
        self.set_alias(alias)
        return adapter.generation

    def unload(self, name: str, expected: str | None = None) -> None:
        """Remove a name; sequences that run with its generation go on to their end.

        Raises AdapterNotFound, and AdapterConflict if it is not at the `expected` generation.
        """
        alias = self.find(name)
        self.check_expected(alias, name, expected)
        del self.aliases[name]
        self.remove_unused(alias.generation)

    def set_alias(self, alias: AdapterName) -> None:
        """Let a name refer to a loaded adapter, and remove the one before if it is unused."""
        before = self.aliases.get(alias.name)
        self.aliases[alias.name] = alias
        if before is not None and before.generation != alias.generation:
            self.remove_unused(before.generation)

    def remove_unused(self, generation: str | None) -> None:
        """Remove a generation from the store unless a name or a sequence uses it."""
        if generation is None or self.store.use_counts[generation]:
            return
        if any(alias.generation == generation for alias in self.aliases.values()):
            return
        self.store.remove(generation)

    def add_to_store(self, alias: AdapterName, adapter: LoadedAdapter) -> None:
        """Store an adapter that was read for an alias. Raises AdapterError for a damaged one."""
        if adapter.generation not in self.store.adapters:
            self.loader.place(adapter)
        self.store.add(alias.name, adapter)
        alias.generation = adapter.generation
        if alias.pinned:
            self.store.pin(adapter.generation)
        waited_for = (each.generations for each in self.waiting.values())
        self.store.evict_unused({adapter.generation}.union(*waited_for))

    # Reads

    @property
    def busy(self) -> bool:
        """Whether a request or command waits for a read."""
        return self.loading is not None or bool(self.waiting)

    @property
    def has_finished(self) -> bool:
        """Whether a read has ended that `poll` has not handled yet."""
        return not self.finished.empty()

    def start_reading(self, alias: AdapterName) -> None:
        """Read an alias in the reader thread, unless it is being read already."""
        if alias.reading is None:
            alias.reading = self.reader.submit(self.loader.read, alias.reference)
            alias.reading.add_done_callback(partial(self.finish_reading, alias))

    def finish_reading(self, alias: AdapterName, reading: Future[LoadedAdapter]) -> None:
        """Called in the reader thread when a read ends."""
        # Queued before the call: the woken thread must find the read.
        self.finished.put((alias, reading))
        self.wake()

    def poll(self) -> Iterator[ReadResult]:
        """Handle the reads that have ended; yield the requests and commands that wait no more.

        None are handled while running sequences have the memory that the check of adapters needs.
        The caller submits a request before it takes the next result: until then nothing retains
        the generations of the request, and a later read may evict them from the store.
        """
        while self.has_finished and self.store.may_probe():
            alias, reading = self.finished.get()
            alias.reading = None
            if self.loading is not None and self.loading.alias is alias:
                yield self.finish_load(self.loading, reading)
            else:
                yield from self.finish_read(alias, reading)

    def finish_read(
        self, alias: AdapterName, reading: Future[LoadedAdapter]
    ) -> Iterator[ReadResult]:
        """Store an adapter that was read for requests; yield those that wait for no other."""
        waiting = [each for each in self.waiting.values() if alias in each.aliases]
        error: OstroError | None = None
        try:
            # A name that was removed or replaced meanwhile: `mixture` finds what it refers to now.
            if self.aliases.get(alias.name) is alias:
                adapter = reading.result()
                if alias.generation not in (None, adapter.generation):
                    raise AdapterConflict(
                        f"the files of {alias.name!r} have changed since they were first read; "
                        "load it again with load_inplace"
                    )
                self.add_to_store(alias, adapter)
                for each in waiting:
                    each.generations.add(adapter.generation)
        except Exception as caught:
            error = as_adapter_error(caught, alias.name)
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
            # Again: the name may have been changed while the files were read.
            self.check_expected(self.aliases.get(alias.name), alias.name, load.expected)
            self.add_to_store(alias, adapter)
        except Exception as error:
            return ReadResult(load.id, as_adapter_error(error, alias.name))
        self.set_alias(alias)
        return ReadResult(load.id)

    # Requests

    def ensure_read(self, id: str, refs: Sequence[AdapterRef]) -> bool:
        """Whether the adapters of the request `id` have been read. If not, they are read now, and
        `poll` yields the result. Raises AdapterError if one of them does not exist.
        """
        named = list(self.resolve_names(refs))
        missing = list(dict.fromkeys(a for a in named if a.generation not in self.store.adapters))
        if not missing:
            return True
        for alias in missing:
            self.start_reading(alias)
        known = (*(alias.generation for alias in named), *(ref.generation for ref in refs))
        self.waiting[id] = PendingRead(id, missing, {g for g in known if g})
        return False

    def cancel(self, id: str) -> None:
        """Wait no more for the request `id`. A read under way goes on to its end."""
        self.waiting.pop(id, None)

    def resolve_names(self, refs: Sequence[AdapterRef]) -> Iterator[AdapterName]:
        """The aliases that a request names. Raises AdapterNotFound."""
        for ref in refs:
            if ref.generation:
                if ref.generation not in self.store.adapters:
                    raise AdapterNotFound(
                        f"there is no adapter of generation {ref.generation:.64}", param="adapter"
                    )
            elif ref.name in self.aliases or not self.may_resolve(ref.name):
                yield self.find(ref.name)
            else:
                yield self.register(ref.name, ref.name)

    def may_resolve(self, name: str) -> bool:
        """Whether plugins may resolve an unknown name; never if it is a path on this machine."""
        return self.loader.settings.adapter_resolvers and not Path(name).exists()

    def mixture(self, refs: Sequence[AdapterRef], tokens: Sequence[int] = ()) -> Mixture:
        """The adapters of a request, which have been read; scales of the same adapter add up.

        An adapter with invocation tokens applies from their last occurrence in `tokens` on, or not
        at all. Raises AdapterError for a mixture that cannot be computed.
        """
        scales: dict[str, float] = {}
        for ref in refs:
            if not abs(ref.scale) <= MAX_SCALE:
                raise RequestError(
                    f"the scale {ref.scale} of an adapter is not within -{MAX_SCALE}..{MAX_SCALE}",
                    param="adapters",
                )
            generation = ref.generation or self.find(ref.name).generation or ""
            if generation not in self.store.adapters:
                raise AdapterNotFound(
                    f"the adapter {ref.name or generation!r:.100} was unloaded while the request "
                    "waited for it; send the request again",
                    param="adapters",
                )
            scales[generation] = scales.get(generation, 0.0) + ref.scale
        # Without those of scale 0: such a request shares the prefix cache of the base.
        chosen = {g: s for g, s in scales.items() if s}
        adapters = [self.store.adapters[generation] for generation in chosen]
        check_mixture(adapters, list(chosen.values()))
        self.store.adapter_pool.check_room(adapters)
        shares = []
        for adapter, scale in zip(adapters, chosen.values(), strict=True):
            self.store.adapters.move_to_end(adapter.generation)
            start = last_occurrence(adapter.invocation, tokens)
            if start is not None:
                shares.append(WeightedAdapter(adapter, scale, start))
        for ref in refs:
            if ref.name:
                self.find(ref.name).requests += 1
        return Mixture(tuple(shares)) if shares else EMPTY

    def retain(self, mixture: Mixture) -> None:
        """Keep the adapters of a sequence that begins."""
        self.store.retain(mixture)

    def release(self, mixture: Mixture) -> None:
        """Undo `retain` for a sequence that has ended."""
        for generation in self.store.release(mixture):
            self.remove_unused(generation)

    def close(self) -> None:
        """Stop reading, and detach all adapters from the model."""
        # Without a wait: a read may take minutes, and its result is not needed.
        self.reader.shutdown(wait=False, cancel_futures=True)
        self.store.adapter_pool.detach()


def last_occurrence(invocation: Sequence[int], tokens: Sequence[int]) -> int | None:
    """The start of the last occurrence of an invocation in tokens; 0 for an empty invocation."""
    if not invocation:
        return 0
    size = len(invocation)
    for start in range(len(tokens) - size, -1, -1):
        if list(tokens[start : start + size]) == list(invocation):
            return start
    return None


def check_name(name: str) -> None:
    """Raise AdapterNameRefused for a name that could be a path, or that is not printable."""
    plain = name.isprintable() and not any(mark in name for mark in "/\\:") and name.strip() == name
    if not plain or name in (".", "..") or not 0 < len(name) <= MAX_NAME:
        raise AdapterNameRefused(
            f"{name!r:.60} is not a valid adapter name; use up to {MAX_NAME} printable characters "
            "without /, \\ and :",
            param="lora_name",
        )


def as_adapter_error(error: Exception, name: str) -> OstroError:
    """An error of a read as an AdapterError that names the adapter, or as Overloaded."""
    if isinstance(error, Overloaded):
        return Overloaded(f"the adapter {name!r}: {error}", param=error.param)
    if isinstance(error, OstroError):
        kind = type(error) if isinstance(error, AdapterError) else AdapterError
        return kind(f"the adapter {name!r}: {error}", param=error.param)
    # Only the type: the text of an unexpected error may contain paths of the server.
    log.exception("the adapter %r could not be read", name, exc_info=error)
    return AdapterError(f"the adapter {name!r} could not be read: {type(error).__name__}")
