"""Mixture tables: device tensors that hold the pages and scales of the adapters of each row.

A step carries one index per row of its batch, into the rows of this table; row 0 has no adapters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ostro.core.device import to_device

WIDTH = 32
"""Most pages of one mixture: two adapters of rank 256, or 32 of rank 16."""

SPECIAL = 2
"""Most adapters of one mixture that have gains, biases or whole weights."""


@dataclass(frozen=True, kw_only=True)
class MixtureEntry:
    """One adapter of a mixture: its pages, its scale, and its special slot."""

    pages: Sequence[int]
    scale: float
    slot: int | None = None


class MixtureTable:
    """The mixture table on one device, with M rows.

    pages [M, width] int32, -1 for none, and scales [deltas, M, width] float32. `owners` [M, width]
    int32 are the indices of the special slot of each page, -1 for none; `slots` [M, SPECIAL] int32
    are these slots, `strengths` [M, SPECIAL] float32 their scales. All deltas share one [M, width]
    of scales until `add_scalings` gives each its own.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self.device = device
        # Allocated once and written in place: captured steps read these addresses.
        self.pages = torch.full((rows, 1), -1, dtype=torch.int32, device=device)
        self.scales = torch.zeros(1, rows, 1, device=device)
        self.owners = torch.full((rows, 1), -1, dtype=torch.int32, device=device)
        self.slots = torch.full((rows, SPECIAL), -1, dtype=torch.int32, device=device)
        self.strengths = torch.zeros(rows, SPECIAL, device=device)

    def to(self, device: torch.device) -> MixtureTable:
        """A copy on another device."""
        replica = MixtureTable(0, device)
        for name in ("pages", "scales", "owners", "slots", "strengths"):
            setattr(replica, name, getattr(self, name).to(device))
        return replica

    @property
    def width(self) -> int:
        """Pages that a row has room for."""
        return self.pages.shape[1]

    def double_width(self) -> None:
        """Make room for twice as many pages in a row; replaces the tensors."""
        blank = torch.full_like(self.pages, -1)
        # One assignment: if memory runs out, all three tensors keep their old width.
        self.pages, self.owners, self.scales = (
            torch.cat((self.pages, blank), -1),
            torch.cat((self.owners, blank), -1),
            torch.cat((self.scales, torch.zeros_like(self.scales)), -1),
        )

    def add_scalings(self, deltas: int, rows: int) -> None:
        """Add separate scales for each delta, and `rows` more rows; replaces the tensors."""

        def extended(tensor: Tensor, fill: float) -> Tensor:
            blank = torch.full((rows, *tensor.shape[1:]), fill, device=self.device)
            return torch.cat((tensor, blank.to(tensor.dtype)))

        known = [extended(scales, 0) for scales in self.scales]
        # A new delta starts with the scales that all deltas share: those of plain mixtures.
        self.pages, self.owners, self.slots, self.strengths, self.scales = (
            extended(self.pages, -1),
            extended(self.owners, -1),
            extended(self.slots, -1),
            extended(self.strengths, 0),
            torch.stack(known + [known[0]] * (deltas - len(known))),
        )

    def scales_of(self, delta: int) -> Tensor:
        """The scales [M, width] of the delta with this index."""
        return self.scales[delta if len(self.scales) > 1 else 0]

    @torch.inference_mode()
    def write(self, row: int, entries: Sequence[MixtureEntry]) -> None:
        """Replace the contents of a row."""
        pages, scales, owners = ([x] * self.width for x in (-1, 0.0, -1))
        slots, strengths = [-1] * SPECIAL, [0.0] * SPECIAL
        at, special = 0, 0
        for entry in entries:
            for page in entry.pages:
                pages[at], scales[at] = page, entry.scale
                owners[at] = -1 if entry.slot is None else special
                at += 1
            if entry.slot is not None:
                slots[special], strengths[special] = entry.slot, entry.scale
                special += 1
        # Copies that do not block: rows change while the device computes the step before.
        self.pages[row] = to_device(pages, torch.int32, self.device)
        self.scales[:, row] = to_device(scales, torch.float32, self.device)
        self.owners[row] = to_device(owners, torch.int32, self.device)
        self.slots[row] = to_device(slots, torch.int32, self.device)
        self.strengths[row] = to_device(strengths, torch.float32, self.device)


class MixtureTables:
    """The mixture table with a replica on each device that has deltas, and its free rows.

    `scaling_rows` are the last rows, which X-LoRA rewrites in every step; there are none before
    `add_scalings`. Only `add_scalings` and `ensure_width` replace tensors that captured steps read;
    both return whether they did.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        # Row 0 is never free: it is the row of the base.
        self.rows, self.free_rows = rows, list(range(rows - 1, 0, -1))
        self.scaling_rows = range(rows, rows)
        self.main = MixtureTable(rows, device)
        self.tables = {device: self.main}

    def table(self, device: torch.device) -> MixtureTable:
        """The replica on a device."""
        if device not in self.tables:
            self.tables[device] = self.main.to(device)
        return self.tables[device]

    def add_scalings(self, deltas: int, rows: int) -> bool:
        """Give each delta its own scales, and add `rows` scaling rows if there are none."""
        if self.scaling_rows and len(self.main.scales) >= deltas:
            return False
        for table in self.tables.values():
            table.add_scalings(deltas, 0 if self.scaling_rows else rows)
        self.scaling_rows = range(self.rows, self.rows + rows)
        return True

    def ensure_width(self, pages: int) -> bool:
        """Make room for so many pages in a row."""
        narrow = [table for table in self.tables.values() if table.width < pages]
        for table in narrow:
            while table.width < pages:
                table.double_width()
        return bool(narrow)

    def write(self, row: int, entries: Sequence[MixtureEntry]) -> None:
        """Replace the contents of a row on every device."""
        for table in self.tables.values():
            table.write(row, entries)
