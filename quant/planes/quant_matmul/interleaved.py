"""The row-interleaved x16 memory layout of quantized weights for CPU kernels.

Sixteen rows form a panel, one row per vector lane. A tensor [..., n, c] of c words of codes, or c
values of groups, becomes [..., n / 16, c, 16]: a matrix product reads memory front to back, one
vector at a time. Rows missing in the last panel are zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ostro.quant.planes.planes import Planes

LANES = 16


class InterleavedPlanes:
    """Planes [n, k], or [experts, n, k], in the interleaved layout; `planes()` converts back."""

    def __init__(self, planes: Planes) -> None:
        self.shape = planes.shape
        # Planes without rows, for the attributes that are no rows: bits, table, a constant zero.
        self.template = planes.map(lambda tensor: tensor[..., :0, :].clone())
        self.tensors = {
            name: interleave(as_words(tensor) if name.startswith("codes") else tensor)
            for name, tensor in planes.flat().items()
        }

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def planes(self) -> Planes:
        """Convert back to the original planes, bit for bit."""
        n = self.shape[-2]
        return self.from_rows(
            {name: t.mT.flatten(-3, -2)[..., :n, :] for name, t in self.tensors.items()}
        )

    def select(self, ids: Tensor) -> Planes:
        """The rows `ids` int64 [t], counted over all experts, as planes [t, k]."""
        n = self.shape[-2]
        panel = ids // n * -(-n // LANES) + ids % n // LANES
        lane = ids % n % LANES
        return self.from_rows(
            {name: tensor.flatten(0, -3)[panel, :, lane] for name, tensor in self.tensors.items()}
        )

    def from_rows(self, rows: dict[str, Tensor]) -> Planes:
        """Planes of de-interleaved tensors, with words of codes as bytes again."""
        tensors = {name: tensor.contiguous() for name, tensor in rows.items()}
        for name, tensor in tensors.items():
            if name.startswith("codes"):
                tensors[name] = tensor.view(torch.uint8)
        return self.template.from_flat(tensors)


def as_words(plane: Tensor) -> Tensor:
    """Bytes [..., 4 w] as int32 [..., w]."""
    plane = plane.contiguous()
    # A slice of a single row is contiguous, but may start at any byte.
    aligned = plane.clone() if plane.storage_offset() % 4 else plane
    return aligned.view(torch.int32)


def interleave(rows: Tensor) -> Tensor:
    """[..., n, c] -> [..., ceil(n / 16), c, 16], contiguous."""
    missing = -rows.shape[-2] % LANES
    if missing:
        zeros = rows.new_zeros(*rows.shape[:-2], missing, rows.shape[-1])
        rows = torch.cat((rows, zeros), -2)
    return rows.unflatten(-2, (-1, LANES)).mT.contiguous()
