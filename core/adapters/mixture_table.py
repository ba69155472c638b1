"""The mixture table: which pages apply to a row, and how much of each, on the device.

A step carries one number per row, its row of this table; row 0 is the base alone. The table's
tensors stay in place for good, so that captured steps read whatever is written there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ostro.core.device import to_device

WIDTH = 32
"""Pages of one mixture at most: two adapters of rank 256, or 32 of rank 16."""

SPECIAL = 2
"""Adapters of one mixture that have gains, biases or whole weights."""


@dataclass(frozen=True, kw_only=True)
class MixtureEntry:
    """What a mixture holds of one adapter: its pages, how much of it, and its special slot."""

    pages: Sequence[int]
    scale: float
    slot: int | None = None


class MixtureTable:
    """The mixture table as it lies on one device.

    pages [M, width] int32, -1 for none, and scales [tables, M, width] float32; `owners` [M, width]
    int32 tell which of a row's special slots a page belongs to, -1 for none; `slots` [M, SPECIAL]
    int32 are these, `strengths` [M, SPECIAL] float32 their scales. The scales of all tables are one
    until `widen` gives each table its own.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self.device = device
        self.pages = torch.full((rows, 1), -1, dtype=torch.int32, device=device)
        self.scales = torch.zeros(1, rows, 1, device=device)
        self.owners = torch.full((rows, 1), -1, dtype=torch.int32, device=device)
        self.slots = torch.full((rows, SPECIAL), -1, dtype=torch.int32, device=device)
        self.strengths = torch.zeros(rows, SPECIAL, device=device)

    def to(self, device: torch.device) -> MixtureTable:
        """A copy on another device."""
        made = MixtureTable(0, device)
        for name in ("pages", "scales", "owners", "slots", "strengths"):
            setattr(made, name, getattr(self, name).to(device))
        return made

    @property
    def width(self) -> int:
        """Pages that a row has room for."""
        return self.pages.shape[1]

    def double(self) -> None:
        """Room for twice as many pages in a row."""
        blank = torch.full_like(self.pages, -1)
        # All three or, where memory runs out, none: they are one table.
        self.pages, self.owners, self.scales = (
            torch.cat((self.pages, blank), -1),
            torch.cat((self.owners, blank), -1),
            torch.cat((self.scales, torch.zeros_like(self.scales)), -1),
        )

    def widen(self, tables: int, more: int) -> None:
        """Scales of its own for each table, and so many more rows."""

        def longer(tensor: Tensor, fill: float) -> Tensor:
            blank = torch.full((more, *tensor.shape[1:]), fill, device=self.device)
            return torch.cat((tensor, blank.to(tensor.dtype)))

        known = [longer(scales, 0) for scales in self.scales]
        self.pages, self.owners, self.slots, self.strengths, self.scales = (
            longer(self.pages, -1),
            longer(self.owners, -1),
            longer(self.slots, -1),
            longer(self.strengths, 0),
            torch.stack(known + [known[0]] * (tables - len(known))),
        )

    def of(self, table: int) -> Tensor:
        """The scales [M, width] of a table."""
        return self.scales[table if len(self.scales) > 1 else 0]

    @torch.inference_mode()
    def write(self, row: int, entries: Sequence[MixtureEntry]) -> None:
        """Say what a row holds from now on."""
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
        self.pages[row] = to_device(pages, torch.int32, self.device)
        self.scales[:, row] = to_device(scales, torch.float32, self.device)
        self.owners[row] = to_device(owners, torch.int32, self.device)
        self.slots[row] = to_device(slots, torch.int32, self.device)
        self.strengths[row] = to_device(strengths, torch.float32, self.device)


class MixtureTables:
    """The rows of the mixture table, and its sheets, one on each device where tables lie.

    `drawn` are the last rows, which X-LoRA draws anew at every step; there are none before `widen`.
    Only `widen` and `reach` put other tensors in the place of those that captured steps know.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rows, self.free = rows, list(range(rows - 1, 0, -1))
        self.drawn = range(rows, rows)
        self.home = MixtureTable(rows, device)
        self.sheets = {device: self.home}

    def sheet(self, device: torch.device) -> MixtureTable:
        """The table on a device."""
        if device not in self.sheets:
            self.sheets[device] = self.home.to(device)
        return self.sheets[device]

    def widen(self, tables: int, drawn: int) -> bool:
        """Scales of its own for each table, and rows to be drawn; whether any were lacking."""
        if self.drawn and len(self.home.scales) >= tables:
            return False
        for sheet in self.sheets.values():
            sheet.widen(tables, 0 if self.drawn else drawn)
        self.drawn = range(self.rows, self.rows + drawn)
        return True

    def reach(self, pages: int) -> bool:
        """Room for so many pages in a row; whether there was less."""
        narrow = [sheet for sheet in self.sheets.values() if sheet.width < pages]
        for sheet in narrow:
            while sheet.width < pages:
                sheet.double()
        return bool(narrow)

    def write(self, row: int, entries: Sequence[MixtureEntry]) -> None:
        """Say what a row holds from now on."""
        for sheet in self.sheets.values():
            sheet.write(row, entries)
