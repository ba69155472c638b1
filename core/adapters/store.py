"""The adapter store: the loaded adapters of one model in host memory, by generation."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from math import isfinite

from ostro.core.adapters.adapter import LoadedAdapter, Mixture
from ostro.core.adapters.pool import AdapterPool
from ostro.core.errors import AdapterError

Probe = Callable[[LoadedAdapter], float | None]
"""How much an attached adapter changes the model's outputs, from 0 to about 1; None if unknown."""


class AdapterStore:
    """Loaded adapters by generation, least recently used first.

    `use_counts` are the numbers of running sequences by generation; a generation in use stays.
    """

    def __init__(
        self,
        adapter_pool: AdapterPool,
        probe: Probe,
        *,
        host_bytes: int,
        may_probe: Callable[[], bool] = lambda: True,
    ) -> None:
        """Unused adapters are evicted while all together have more than `host_bytes`.

        `may_probe` returns whether the cache has room for `probe` now.
        """
        self.adapter_pool, self.probe, self.host_bytes = adapter_pool, probe, host_bytes
        self.may_probe = may_probe
        self.adapters: OrderedDict[str, LoadedAdapter] = OrderedDict()
        self.use_counts: Counter[str] = Counter()

    def add(self, name: str, adapter: LoadedAdapter) -> None:
        """Check an adapter's effect and store it; `name` is for errors. Raises AdapterError."""
        if adapter.generation not in self.adapters:
            check_norms(name, adapter)
            attached, changes = self.adapter_pool.attached, self.adapter_pool.changes
            try:
                # Attached before it is accepted: the probe computes with its deltas.
                self.adapter_pool.attach(adapter)
                self.check_effect(name, adapter)
            except Exception:
                self.adapter_pool.undo_attach(adapter, attached, changes)
                raise
            self.adapters[adapter.generation] = adapter
        self.adapters.move_to_end(adapter.generation)

    def check_effect(self, name: str, adapter: LoadedAdapter) -> None:
        """Raise AdapterError for an attached adapter without effect, or with NaN or Inf."""
        adapter.effect = self.probe(adapter)
        if adapter.effect is not None and not isfinite(adapter.effect):
            raise AdapterError(f"with {name!r} the model's outputs contain NaN or Inf")
        if adapter.effect == 0:
            raise AdapterError(f"{name!r} has no effect: outputs are identical with and without it")

    def pin(self, generation: str) -> None:
        """Keep an adapter on the device once it is there."""
        members = members_of(self.adapters[generation])
        self.adapter_pool.pinned.update(member.generation for member in members)

    def evict_unused(self, needed: Collection[str]) -> None:
        """Evict adapters, least recently used first, until all fit in `host_bytes`.

        Adapters that are `needed`, in use or on the device stay. A registered adapter is read again
        when it is requested.
        """
        size = sum(adapter.nbytes for adapter in self.adapters.values())
        for generation in list(self.adapters):
            if size <= self.host_bytes:
                return
            # The pool has a reference to it: eviction here would free nothing.
            on_device = generation in self.adapter_pool.adapters
            if self.use_counts[generation] or generation in needed or on_device:
                continue
            size -= self.adapters.pop(generation).nbytes

    def remove(self, generation: str) -> None:
        """Remove an adapter and free its room on the device, if it is there."""
        # Also without an adapter: a pinned one may have been evicted from the store.
        self.adapter_pool.pinned.discard(generation)
        if adapter := self.adapters.pop(generation, None):
            for each in (adapter, *adapter.members):
                self.adapter_pool.pinned.discard(each.generation)
                self.adapter_pool.evict_unused(each.generation)

    def retain(self, mixture: Mixture) -> None:
        """Count a sequence that begins to use these adapters."""
        self.use_counts.update(mixture.generations)

    def release(self, mixture: Mixture) -> list[str]:
        """Undo `retain`; return the generations that no sequence uses any more."""
        self.use_counts.subtract(mixture.generations)
        unused = [g for g in mixture.generations if not self.use_counts[g]]
        for generation in unused:
            del self.use_counts[generation]
        return unused


def check_norms(name: str, adapter: LoadedAdapter) -> None:
    """Raise AdapterError for an adapter whose factors are damaged or untrained."""
    if broken := [weight for weight, norm in adapter.norms.items() if not isfinite(norm)]:
        raise AdapterError(f"{name!r}: {broken[0]} contains NaN or Inf; train the adapter again")
    if not any(adapter.norms.values()) and not adapter.special:
        raise AdapterError(
            f"{name!r} has no effect: every product of its factors is zero; it was saved before it "
            "was trained"
        )


def members_of(adapter: LoadedAdapter) -> Sequence[LoadedAdapter]:
    """The adapters with pages: the adapter itself, or its members."""
    return adapter.members or (adapter,)
