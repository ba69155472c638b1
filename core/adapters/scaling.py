"""Scaling: what an X-LoRA mixer draws for a row, written to the mixture table.

Nothing of it is read on the host: hidden states become scalings, and these the scales of rows that
the next pass reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ostro.core.adapters.adapter import WeightedAdapter
from ostro.core.adapters.mixture_table import MixtureTables

if TYPE_CHECKING:
    from ostro.core.adapters.pool import PooledAdapter


class Scaling:
    """Where the scalings [t, layers, adapters] of one X-LoRA adapter go in the mixture table.

    `pages` [n] int32 are those of all its members; the scale of page j in table i is the
    scaling of layer `layers[i, j]` and adapter `members[j]`, times `factors[i, j]`.
    """

    def __init__(
        self,
        share: WeightedAdapter,
        adapters: Sequence[PooledAdapter],
        tables: int,
        device: torch.device,
    ) -> None:
        adapter, mixer = share.adapter, share.adapter.mixer
        assert mixer is not None, f"{adapter.generation = } has a mixer"
        self.mixer = mixer
        pages, members, sets = list[int](), list[int](), list[int]()
        for number, pooled in enumerate(adapters):
            count = len(pooled.pages)
            pages += pooled.pages
            members += [number] * count
            sets += [i * pooled.adapter.sets // count for i in range(count)]
        layers = torch.zeros(tables, len(pages), dtype=torch.int64)
        factors = torch.zeros(tables, len(pages))
        for (table, part), layer in adapter.routes.items():
            for j, mine in enumerate(sets):
                if mine == part:
                    layers[table.index, j], factors[table.index, j] = layer, share.scale
        self.pages = torch.tensor(pages, dtype=torch.int32, device=device)
        self.members = torch.tensor(members, device=device)
        self.layers, self.factors = layers.to(device), factors.to(device)

    def write(self, mixtures: MixtureTables, rows: range, hidden: Tensor) -> None:
        """hidden [t, d] of t rows under the base alone -> the rows of the table that are theirs."""
        scalings = self.mixer.scalings(hidden).float()
        drawn = scalings[:, self.layers, self.members] * self.factors  # [t, tables, n]
        here, count = slice(rows.start, rows.stop), len(self.pages)
        for sheet in mixtures.sheets.values():
            sheet.pages[here] = -1
            sheet.pages[here, :count] = self.pages.to(sheet.device)
            scales = drawn.transpose(0, 1).to(sheet.device)
            sheet.scales[: len(self.layers), here, :count] = scales

    def hold(self, mixtures: MixtureTables, source: int, target: int) -> None:
        """Keep the scales of a row that is drawn anew at every step."""
        for sheet in mixtures.sheets.values():
            sheet.pages[target] = sheet.pages[source]
            sheet.scales[:, target] = sheet.scales[:, source]
