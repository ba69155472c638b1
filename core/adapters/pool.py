"""Residents: the adapters that lie on the device, in which pages, and who uses them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import Module

from ostro.core.adapters.adapter import LoadedAdapter, Mixture, WeightedAdapter
from ostro.core.adapters.delta import AdapterDelta
from ostro.core.adapters.mixture_table import MixtureEntry, MixtureTables
from ostro.core.adapters.scaling import Scaling
from ostro.core.nn import Embedding, Linear
from ostro.core.nn.experts import ExpertLinear
from ostro.core.ops import Target
from ostro.core.placement.placement import Placement

SLOTS = 16
"""Adapters with gains, biases or whole weights that lie on the device at once."""


@dataclass(eq=False)
class PooledAdapter:
    """An adapter on the device: its pages, its special slot, and how many lanes use it."""

    adapter: LoadedAdapter
    pages: list[int]
    slot: int | None
    users: int = 0


@dataclass(eq=False)
class MixtureRow:
    """A row of the mixture table, shared by all sequences with these very shares."""

    row: int
    key: tuple[tuple[str, float], ...]
    adapters: list[PooledAdapter]
    users: int = 0


@dataclass(eq=False)
class MixtureLease:
    """What a sequence holds: from which token on which lane applies, in order.

    Of an X-LoRA adapter `scaling` writes what its mixer draws, and `drawn` are the rows of the
    mixture table that hold it for the tokens of the step that comes.
    """

    lanes: Sequence[tuple[int, MixtureRow]] = ()
    scaling: Scaling | None = None
    drawn: Sequence[int] = ()

    @property
    def pairs(self) -> tuple[tuple[str, float], ...]:
        """The (generation, scale) of all lanes, for keys."""
        return tuple(pair for _, lane in self.lanes for pair in lane.key)

    def rows(self, start: int, stop: int) -> list[int]:
        """The rows of the mixture table of tokens start..stop."""
        if self.scaling is not None:
            return list(self.drawn)
        found = [0] * (stop - start)
        for since, lane in self.lanes:
            for i in range(max(since, start), stop):
                found[i - start] = lane.row
        return found

    def row(self, token: int) -> int:
        """The row of one token."""
        return next((lane.row for since, lane in reversed(self.lanes) if since <= token), 0)


NOTHING = MixtureLease()


class AdapterPool:
    """Tables, pages and mixture rows of one model."""

    def __init__(
        self, *, pages: int, lanes: int, drawn: int, target: Target, placement: Placement
    ) -> None:
        """`pages` in each table, `lanes` distinct mixtures at once, and as many as `drawn` rows of
        X-LoRA in a step; `target` is the model's, `placement` says where its modules compute.
        """
        self.target, self.size, self.drawn = target, pages, drawn
        self.placement = placement
        self.mixtures = MixtureTables(lanes + 1, target.device)
        self.tables: dict[Module, AdapterDelta] = {}
        self.free, self.slots = list(range(pages - 1, -1, -1)), list(range(SLOTS - 1, -1, -1))
        self.here: OrderedDict[str, PooledAdapter] = OrderedDict()
        self.pinned: set[str] = set()
        self.lanes: dict[tuple[tuple[str, float], ...], MixtureRow] = {}
        self.changes = 0  # how often what is captured has become another program
        self.swaps = 0

    def table(self, module: Module) -> AdapterDelta:
        """The table of a module; the first adapter that touches it has it made."""
        if module not in self.tables:
            assert isinstance(module, Linear | Embedding | ExpertLinear), (
                f"{module} takes no adapters"
            )
            device, dtype = self.placement.device(module), module.held[0].dtype
            target = replace(self.target, device=device, dtype=dtype)
            sheet, number = self.mixtures.sheet(device), len(self.tables)
            self.tables[module] = AdapterDelta(module, number, self.size, SLOTS, sheet, target)
        return self.tables[module]

    def attach(self, adapter: LoadedAdapter) -> None:
        """Have the modules that an adapter changes call their tables."""
        for table in adapter.tables:
            if not any(delta is table for delta in table.module.deltas):
                table.module.deltas.append(table)
                self.changes += 1
        for member in adapter.members:
            self.attach(member)
        if self.mixtures.drawn:
            self.widen()

    def discard(self, adapter: LoadedAdapter, kept: set[AdapterDelta], changes: int) -> None:
        """Take back what `attach` did for an adapter that is refused, and free its pages. `kept`
        are the tables that were attached before, `changes` the count of then: modules call the same
        tables again, so that what is captured is still right.
        """
        for each in (adapter, *adapter.members):
            self.forget(each.generation)
            for table in each.tables:
                if table not in kept:
                    table.module.deltas[:] = [d for d in table.module.deltas if d is not table]
        if not adapter.special:  # gains and whole weights may have changed a table that stays
            self.changes = changes

    @property
    def attached(self) -> set[AdapterDelta]:
        """The tables that modules call."""
        return {t for t in self.tables.values() if any(d is t for d in t.module.deltas)}

    def detach(self) -> None:
        """Have no module call a table any more."""
        for table in self.tables.values():
            table.module.deltas[:] = [d for d in table.module.deltas if d is not table]

    def hold(self, mixture: Mixture) -> MixtureLease | None:
        """Bring a mixture's adapters to the device, for one user; None where there is no room."""
        if not mixture.shares:
            return NOTHING
        held, share = MixtureLease([]), mixture.shares[0]
        try:
            for start in mixture.starts:
                lane = self.lane(mixture.at(start))
                if lane is None:
                    self.let_go(held)
                    return None
                lane.users += 1
                held.lanes = [*held.lanes, (start, lane)]
            if share.adapter.mixer is not None:
                self.widen()
                adapters = held.lanes[0][1].adapters
                held.scaling = Scaling(share, adapters, len(self.tables), self.target.device)
        except Exception:
            # A table may have been replaced before the error came: what is captured is outdated.
            self.changes += 1
            self.let_go(held)
            raise
        return held

    def widen(self) -> None:
        """Scales of its own for each table, and rows for the tokens of a step."""
        self.changes += self.mixtures.widen(len(self.tables), self.drawn)

    def let_go(self, held: MixtureLease) -> None:
        """One user of each lane less."""
        for _, lane in held.lanes:
            lane.users -= 1
            if lane.users:
                continue
            del self.lanes[lane.key]
            self.mixtures.free.append(lane.row)
            for resident in lane.adapters:
                resident.users -= 1

    def lane(self, shares: Sequence[WeightedAdapter]) -> MixtureRow | None:
        """The row that holds these shares; a new row counts as one more user of its adapters."""
        mixed, free = shares[0].adapter.mixer is not None, self.mixtures.free
        key = tuple(sorted((s.adapter.generation, s.scale) for s in shares))
        if key in self.lanes and not mixed:
            return self.lanes[key]
        if not free:
            return None
        if mixed:
            # Scalings differ from sequence to sequence, so that a row is never shared: its number
            # makes a key that no other mixture has.
            key = (("row", float(free[-1])),)
        adapters: list[PooledAdapter] = []
        lane = None
        try:
            for share in shares:
                for adapter in share.adapter.members or (share.adapter,):
                    resident = self.resident(adapter)
                    if resident is None:
                        return None
                    resident.users += 1
                    adapters.append(resident)
            self.changes += self.mixtures.reach(sum(len(r.pages) for r in adapters))
            self.mixtures.write(free[-1], entries_of(shares, adapters))
            lane = self.lanes[key] = MixtureRow(free.pop(), key, adapters)
            return lane
        finally:
            if lane is None:
                for resident in adapters:
                    resident.users -= 1

    def resident(self, adapter: LoadedAdapter) -> PooledAdapter | None:
        """The adapter on the device, brought there if it is not; None where there is no room."""
        if found := self.here.get(adapter.generation):
            self.here.move_to_end(adapter.generation)
            return found
        if not self.make_room(adapter):
            return None
        pages = [self.free.pop() for _ in range(adapter.pages)]
        slot = self.slots.pop() if adapter.special else None
        resident = self.here[adapter.generation] = PooledAdapter(adapter, pages, slot)
        try:
            self.swap_in(adapter, pages, slot)
        except Exception:
            self.send_away(resident)
            raise
        self.swaps += 1
        return resident

    def make_room(self, adapter: LoadedAdapter) -> bool:
        """Send away what was used longest ago, until there are pages and a slot."""

        def enough() -> bool:
            return len(self.free) >= adapter.pages and (bool(self.slots) or not adapter.special)

        idle = [r for g, r in self.here.items() if not r.users and g not in self.pinned]
        for resident in idle:
            if enough():
                break
            self.send_away(resident)
        return enough()

    def send_away(self, resident: PooledAdapter) -> None:
        """Free the pages and the slot of an adapter that nobody uses."""
        assert not resident.users, f"{resident.adapter.generation = } is in use"
        del self.here[resident.adapter.generation]
        self.free += resident.pages
        if resident.slot is not None:
            self.slots.append(resident.slot)
            for table in resident.adapter.whole:
                self.changes += table.whole.pop(resident.slot, None) is not None

    def forget(self, generation: str) -> None:
        """Free an adapter's room at once, if nobody uses it."""
        resident = self.here.get(generation)
        if resident is not None and not resident.users:
            self.send_away(resident)

    @torch.inference_mode()
    def swap_in(self, adapter: LoadedAdapter, pages: Sequence[int], slot: int | None) -> None:
        """Write an adapter into tables."""
        for table in self.tables.values():
            table.fill(pages, adapter.filled.get(table))
        if slot is None:
            return
        for table in self.tables.values():
            if table.gains is not None:
                table.gains[slot] = 0
        for table in dict.fromkeys([*adapter.factors, *adapter.biases]):
            if table not in adapter.gains:
                factors, biases = adapter.factors.get(table, {}), adapter.biases.get(table, {})
                with self.placement.lent(table.module):
                    adapter.gains[table] = table.measure(factors, biases)
            self.changes += table.gains is None
            with self.placement.lent(table.module):
                table.gain(slot, adapter.gains[table])
        for table, storage in adapter.whole.items():
            table.whole[slot] = storage
            self.changes += 1

    def renew(self) -> None:
        """The base's weights have changed: forget what was measured with them."""
        for resident in list(self.here.values()):
            resident.adapter.gains = {}
            self.send_away(resident)
        for table in self.tables.values():
            table.gains = table.lengths = None

    @property
    def nbytes(self) -> int:
        return sum(table.nbytes for table in self.tables.values())


def entries_of(
    shares: Sequence[WeightedAdapter], adapters: Sequence[PooledAdapter]
) -> list[MixtureEntry]:
    """What a row of the mixture table holds of adapters that lie on the device."""
    scales = [share.scale for share in shares for _ in share.adapter.members or (share,)]
    return [
        MixtureEntry(pages=resident.pages, scale=scale, slot=resident.slot)
        for resident, scale in zip(adapters, scales, strict=True)
    ]
