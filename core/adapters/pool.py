"""The adapter pool: adapters on the device, their pages and rows of the mixture table."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Lock

import torch
from torch.nn import Module

from ostro.core.adapters.adapter import LoadedAdapter, Mixture, PooledAdapter, WeightedAdapter
from ostro.core.adapters.delta import AdapterDelta
from ostro.core.adapters.mixture_table import MixtureEntry, MixtureTables
from ostro.core.adapters.scaling import Scaling
from ostro.core.errors import AdapterLimit
from ostro.core.nn import Embedding, Linear
from ostro.core.nn.experts import ExpertLinear
from ostro.core.ops import Target
from ostro.core.placement.placement import Placement

SLOTS = 16
"""Most adapters with gains, biases or whole weights on the device at once."""


@dataclass(eq=False)
class MixtureRow:
    """A row of the mixture table; sequences with the same adapters and scales share it.

    `users` counts the leases. The row is free again when the last one is released.
    """

    index: int
    key: tuple[tuple[str, float], ...]
    adapters: list[PooledAdapter]
    users: int = 0


@dataclass(eq=False)
class MixtureLease:
    """The rows of the mixture table that a sequence uses: (first token, row), in order.

    For an X-LoRA adapter, `scaling` writes the scalings of the sequence, and `scaling_rows` are the
    rows of the mixture table with the scalings of the tokens of the next step.
    """

    rows: Sequence[tuple[int, MixtureRow]] = ()
    scaling: Scaling | None = None
    scaling_rows: Sequence[int] = ()

    @property
    def pairs(self) -> tuple[tuple[str, float], ...]:
        """The (generation, scale) of all rows, for keys of caches."""
        return tuple(pair for _, row in self.rows for pair in row.key)

    def row_indices(self, start: int, stop: int) -> list[int]:
        """The row of the mixture table for each of the tokens start..stop."""
        if self.scaling is not None:
            return list(self.scaling_rows)
        found = [0] * (stop - start)
        for since, row in self.rows:
            for i in range(max(since, start), stop):
                found[i - start] = row.index
        return found

    def row_index(self, token: int) -> int:
        """The row of the mixture table for one token."""
        return next((row.index for since, row in reversed(self.rows) if since <= token), 0)


NOTHING = MixtureLease()


class AdapterPool:
    """The adapters on the device, least recently used first, and the deltas that hold their pages.

    `changes` counts the changes to what captured steps compute: modules that call other deltas, and
    tensors that were replaced. The runner captures again when it has grown.
    """

    def __init__(
        self, *, pages: int, rows: int, scaling_rows: int, target: Target, placement: Placement
    ) -> None:
        """`pages` in each delta; `rows` distinct mixtures at once; `scaling_rows` of X-LoRA in a
        step. `target` is the model's, `placement` gives the device of each module.
        """
        self.target, self.size, self.scaling_rows = target, pages, scaling_rows
        self.placement = placement
        self.mixtures = MixtureTables(rows + 1, target.device)
        self.deltas: dict[Module, AdapterDelta] = {}
        self.making = Lock()
        self.free_pages = list(range(pages - 1, -1, -1))
        self.free_slots = list(range(SLOTS - 1, -1, -1))
        self.adapters: OrderedDict[str, PooledAdapter] = OrderedDict()
        self.pinned: set[str] = set()
        self.rows: dict[tuple[tuple[str, float], ...], MixtureRow] = {}
        self.changes = 0
        self.swaps = 0

    def delta(self, module: Module) -> AdapterDelta:
        """The delta of a module, made for the first adapter that changes the module.

        Called in the reader thread and in the engine's, which iterates over `deltas`.
        """
        with self.making:
            if module not in self.deltas:
                assert isinstance(module, Linear | Embedding | ExpertLinear), (
                    f"{module} takes no adapters"
                )
                device, dtype = self.placement.device(module), module.active_storages[0].dtype
                target = replace(self.target, device=device, dtype=dtype)
                number, mixtures = len(self.deltas), self.mixtures
                made = AdapterDelta(module, number, self.size, SLOTS, mixtures, target)
                self.deltas = {**self.deltas, module: made}
            return self.deltas[module]

    # Attaching: which modules call their deltas

    def attach(self, adapter: LoadedAdapter) -> None:
        """Let the modules that an adapter changes call their deltas."""
        for delta in adapter.deltas:
            if not any(each is delta for each in delta.module.deltas):
                delta.module.deltas.append(delta)
                self.changes += 1
        for member in adapter.members:
            self.attach(member)
        # Scalings index deltas: new deltas need scales of their own before the next step.
        if self.mixtures.scaling_rows:
            self.add_scalings()

    def undo_attach(
        self, adapter: LoadedAdapter, attached: set[AdapterDelta], changes: int
    ) -> None:
        """Undo `attach` for an adapter that is refused, and evict it. `attached` and `changes` are
        their values from before.
        """
        for each in (adapter, *adapter.members):
            self.evict_unused(each.generation)
            for delta in each.deltas:
                if delta not in attached:
                    remove_delta(delta)
        # The modules call the same deltas as before, so captured steps are right again. Not so with
        # gains and whole weights, which may have changed a delta that remains.
        if not adapter.special:
            self.changes = changes

    @property
    def attached(self) -> set[AdapterDelta]:
        """The deltas that modules call."""
        return {d for d in self.deltas.values() if any(each is d for each in d.module.deltas)}

    def detach(self) -> None:
        """Let no module call a delta any more."""
        for delta in self.deltas.values():
            remove_delta(delta)

    # Leases: the mixtures in use

    def check_room(self, adapters: Sequence[LoadedAdapter]) -> None:
        """Raise AdapterLimit for adapters that never fit beside the pinned ones."""
        needed = {each.generation: each.pages for a in adapters for each in a.members or (a,)}
        pinned = sum(
            pooled.adapter.pages
            for generation, pooled in self.adapters.items()
            if generation in self.pinned and generation not in needed
        )
        if sum(needed.values()) + pinned > self.size:
            raise AdapterLimit(
                "pinned adapters leave no room on the device for the requested ones; start with a "
                "larger --adapter-slots"
            )

    def acquire(self, mixture: Mixture) -> MixtureLease | None:
        """Load a mixture's adapters to the device and lease its rows; None if there is no room."""
        if not mixture.shares:
            return NOTHING
        lease, share = MixtureLease([]), mixture.shares[0]
        try:
            for start in mixture.starts:
                row = self.acquire_row(mixture.at(start))
                if row is None:
                    self.release(lease)
                    return None
                row.users += 1
                lease.rows = [*lease.rows, (start, row)]
            if share.adapter.mixer is not None:
                self.add_scalings()
                members = lease.rows[0][1].adapters
                # Not `len(self.deltas)`: another adapter that is being read may have added some.
                count = len(self.mixtures.main.scales)
                lease.scaling = Scaling(share, members, count, self.target.device)
        except Exception:
            # The error may have come after a tensor was replaced: captured steps are outdated.
            self.changes += 1
            self.release(lease)
            raise
        return lease

    def release(self, lease: MixtureLease) -> None:
        """Release the rows of a lease. Adapters without users stay until their room is needed."""
        for _, row in lease.rows:
            row.users -= 1
            if row.users:
                continue
            del self.rows[row.key]
            self.mixtures.free_rows.append(row.index)
            for pooled in row.adapters:
                pooled.users -= 1

    def add_scalings(self) -> None:
        """Give each delta scales of its own, and the table rows for the tokens of a step."""
        self.changes += self.mixtures.add_scalings(len(self.deltas), self.scaling_rows)

    def acquire_row(self, shares: Sequence[WeightedAdapter]) -> MixtureRow | None:
        """The row with these adapters and scales, written if there is none; None without room."""
        has_mixer = shares[0].adapter.mixer is not None
        key = tuple(sorted((s.adapter.generation, s.scale) for s in shares))
        if key in self.rows and not has_mixer:
            return self.rows[key]
        if not self.mixtures.free_rows:
            return None
        index = self.mixtures.free_rows[-1]
        if has_mixer:
            # Scalings differ between sequences, so such a row is never shared: its index makes a
            # key that no other mixture has.
            key = (("row", float(index)),)
        adapters: list[PooledAdapter] = []
        row = None
        try:
            for adapter in parts_of(shares):
                pooled = self.load(adapter)
                if pooled is None:
                    return None
                # Counted at once: loading the next adapter must not evict this one.
                pooled.users += 1
                adapters.append(pooled)
            self.changes += self.mixtures.ensure_width(sum(len(each.pages) for each in adapters))
            self.mixtures.write(index, entries_of(shares, adapters))
            row = self.rows[key] = MixtureRow(self.mixtures.free_rows.pop(), key, adapters)
            return row
        finally:
            if row is None:
                for pooled in adapters:
                    pooled.users -= 1

    # Adapters on the device

    def load(self, adapter: LoadedAdapter) -> PooledAdapter | None:
        """Load an adapter to the device unless it is there; None if there is no room."""
        if found := self.adapters.get(adapter.generation):
            self.adapters.move_to_end(adapter.generation)
            return found
        if not self.make_room(adapter):
            return None
        pages = [self.free_pages.pop() for _ in range(adapter.pages)]
        slot = self.free_slots.pop() if adapter.special else None
        pooled = self.adapters[adapter.generation] = PooledAdapter(adapter, pages, slot)
        try:
            self.write(adapter, pages, slot)
        except Exception:
            self.evict(pooled)
            raise
        self.swaps += 1
        return pooled

    def make_room(self, adapter: LoadedAdapter) -> bool:
        """Evict unused adapters, least recently used first, until there are pages and a slot;
        whether there are.
        """

        def has_room() -> bool:
            has_slot = bool(self.free_slots) or not adapter.special
            return len(self.free_pages) >= adapter.pages and has_slot

        unused = [a for g, a in self.adapters.items() if not a.users and g not in self.pinned]
        for pooled in unused:
            if has_room():
                break
            self.evict(pooled)
        return has_room()

    def evict(self, pooled: PooledAdapter) -> None:
        """Free the pages and the slot of an adapter that no row uses."""
        assert not pooled.users, f"{pooled.adapter.generation = } is in use"
        del self.adapters[pooled.adapter.generation]
        # The pages keep their contents: no row refers to them until they are written again.
        self.free_pages += pooled.pages
        if pooled.slot is not None:
            self.free_slots.append(pooled.slot)
            for delta in pooled.adapter.whole:
                if delta.whole.pop(pooled.slot, None) is not None:
                    self.changes += 1

    def evict_unused(self, generation: str) -> None:
        """Evict an adapter if it is on the device and no row uses it."""
        pooled = self.adapters.get(generation)
        if pooled is not None and not pooled.users:
            self.evict(pooled)

    @torch.inference_mode()
    def write(self, adapter: LoadedAdapter, pages: Sequence[int], slot: int | None) -> None:
        """Write an adapter to its pages and its slot of all deltas."""
        # Of all: a delta that the adapter does not change may hold another adapter's pages.
        for delta in self.deltas.values():
            delta.write(pages, adapter.packed.get(delta))
        if slot is None:
            return
        for delta in self.deltas.values():
            if delta.gains is not None:
                delta.gains[slot].zero_()
        for delta in dict.fromkeys([*adapter.factors, *adapter.biases]):
            if delta not in adapter.gains:
                factors, biases = adapter.factors.get(delta, {}), adapter.biases.get(delta, {})
                with self.placement.on_device(delta.module):
                    adapter.gains[delta] = delta.compute_gains(factors, biases)
            if delta.gains is None:
                self.changes += 1
            with self.placement.on_device(delta.module):
                delta.write_gains(slot, adapter.gains[delta])
        for delta, storage in adapter.whole.items():
            delta.whole[slot] = storage
            self.changes += 1

    def invalidate(self) -> None:
        """Evict all adapters and drop their gains, which depend on the base's weights.

        Call it when these weights have changed, while no lease is out.
        """
        for pooled in list(self.adapters.values()):
            pooled.adapter.gains = {}
            self.evict(pooled)
        for delta in self.deltas.values():
            delta.gains = delta.base_norms_sq = None

    @property
    def nbytes(self) -> int:
        """Bytes of all deltas on all devices."""
        return sum(delta.nbytes for delta in self.deltas.values())


def remove_delta(delta: AdapterDelta) -> None:
    """Let a module no longer call its delta."""
    # By identity: `==` of deltas of other kinds may be anything.
    delta.module.deltas[:] = [each for each in delta.module.deltas if each is not delta]


def parts_of(shares: Sequence[WeightedAdapter]) -> Iterator[LoadedAdapter]:
    """The adapters of a mixture, or their members: what has pages."""
    for share in shares:
        yield from share.adapter.members or (share.adapter,)


def entries_of(
    shares: Sequence[WeightedAdapter], adapters: Sequence[PooledAdapter]
) -> list[MixtureEntry]:
    """The entries of a row of the mixture table for adapters on the device."""
    scales = [share.scale for share in shares for _ in share.adapter.members or (share,)]
    return [
        MixtureEntry(pages=pooled.pages, scale=scale, slot=pooled.slot)
        for pooled, scale in zip(adapters, scales, strict=True)
    ]
