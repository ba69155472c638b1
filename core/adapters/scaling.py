"""X-LoRA scalings: computed from the hidden states of a row, written to the mixture tables.

The host reads none of them: a scaling goes from the classifier to the scales of rows of the mixture
table, which the next forward pass reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ostro.core.adapters.adapter import PooledAdapter, WeightedAdapter
from ostro.core.adapters.mixture_table import MixtureTables
from ostro.core.device import send, to_device


class Scaling:
    """Maps the scalings [t, layers, adapters] of one X-LoRA adapter to scales of the mixture table.

    `pages` [n] int32 are those of all its members. The scale of page j in delta i is the scaling of
    layer `layers[i, j]` and adapter `members[j]`, times `factors[i, j]`.
    """

    def __init__(
        self,
        share: WeightedAdapter,
        adapters: Sequence[PooledAdapter],
        deltas: int,
        device: torch.device,
    ) -> None:
        """`adapters` are the members in the pool, `deltas` the number of deltas of the model."""
        adapter, mixer = share.adapter, share.adapter.mixer
        assert mixer is not None, f"{adapter.generation = } has a mixer"
        self.mixer = mixer
        pages, members, sets = list[int](), list[int](), list[int]()
        for number, pooled in enumerate(adapters):
            count = len(pooled.pages)
            pages += pooled.pages
            members += [number] * count
            sets += [i * pooled.adapter.sets // count for i in range(count)]
        # A factor of 0 switches a page off: the classifier scales no weight of that part.
        layers = torch.zeros(deltas, len(pages), dtype=torch.int64)
        factors = torch.zeros(deltas, len(pages))
        for (delta, part), layer in adapter.routes.items():
            for j, part_of_page in enumerate(sets):
                if part_of_page == part:
                    layers[delta.index, j], factors[delta.index, j] = layer, share.scale
        self.pages = to_device(pages, torch.int32, device)
        self.members = to_device(members, torch.int64, device)
        self.layers = send(layers, torch.int64, device)
        self.factors = send(factors, torch.float32, device)

    def write(self, mixtures: MixtureTables, rows: range, hidden: Tensor) -> None:
        """Write the scalings of t rows to `rows` of the table; hidden [t, d] are the last hidden
        states of these rows under the base.
        """
        # In float32 and on the device: the host would wait for the step to read them.
        scalings = self.mixer.scalings(hidden).float()
        scales = scalings[:, self.layers, self.members] * self.factors  # [t, deltas, n]
        here, count = slice(rows.start, rows.stop), len(self.pages)
        for table in mixtures.tables.values():
            # The rows were used by other adapters in the step before.
            table.pages[here].fill_(-1)
            table.pages[here, :count] = self.pages.to(table.device)
            table.scales[: len(self.layers), here, :count] = scales.transpose(0, 1).to(table.device)

    def copy_row(self, mixtures: MixtureTables, source: int, target: int) -> None:
        """Copy a scaling row, which the next step overwrites, to a row that lasts."""
        for table in mixtures.tables.values():
            table.pages[target] = table.pages[source]
            table.scales[:, target] = table.scales[:, source]
