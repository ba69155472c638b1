"""Strips: planes as vectors of a CPU read them.

Sixteen rows are the lanes of a vector. What a row has one after the other, the words of four bytes
of its planes and the numbers of its groups, stands in a strip beside what fifteen others have: a
tensor [..., n, many] becomes [..., n / 16, many, 16], and a product reads memory from one end to
the other. Rows that are missing in the last strip are zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ostro.quant.planes.planes import Planes

LANES = 16


class Strips:
    """Planes [n, k], or [experts, n, k], laid out in strips; `planes()` gives them back."""

    def __init__(self, planes: Planes) -> None:
        self.shape = planes.shape
        self.empty = planes.map(lambda tensor: tensor[..., :0, :].clone())
        self.parts = {
            name: lay(words(tensor) if name.startswith("codes") else tensor)
            for name, tensor in planes.flat().items()
        }

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())

    def planes(self) -> Planes:
        """The planes that these strips were made of."""
        n = self.shape[-2]
        rows = {name: part.mT.flatten(-3, -2)[..., :n, :] for name, part in self.parts.items()}
        return self.like(rows)

    def take(self, ids: Tensor) -> Planes:
        """The rows `ids` int64 [t], of all experts end to end."""
        n = self.shape[-2]
        strip = ids // n * -(-n // LANES) + ids % n // LANES
        lane = ids % n % LANES
        return self.like(
            {name: part.flatten(0, -3)[strip, :, lane] for name, part in self.parts.items()}
        )

    def like(self, rows: dict[str, Tensor]) -> Planes:
        """Planes of rows that stand alone again."""
        found = {name: tensor.contiguous() for name, tensor in rows.items()}
        for name, tensor in found.items():
            if name.startswith("codes"):
                found[name] = tensor.view(torch.uint8)
        return self.empty.like(found)


def words(plane: Tensor) -> Tensor:
    """Bytes [..., 4 w] as int32 [..., w]."""
    return plane.contiguous().view(torch.int32)


def lay(rows: Tensor) -> Tensor:
    """[..., n, many] -> [..., n / 16, many, 16], contiguous."""
    missing = -rows.shape[-2] % LANES
    if missing:
        zeros = rows.new_zeros(*rows.shape[:-2], missing, rows.shape[-1])
        rows = torch.cat((rows, zeros), -2)
    return rows.unflatten(-2, (-1, LANES)).mT.contiguous()
