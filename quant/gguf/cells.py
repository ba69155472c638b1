"""Convert codes between the runs of ggml fields and the cells of planes, without unpacking them.

Both store 8 / b codes of b bits per byte (`fields.codes`, `quant.planes.planes`); only the order
differs. With runs of 32 codes or more, byte i of a run has one code of each of 8 / b cells. Take
the 32 bytes of a run as 8 / b pieces of 4 b bytes. Then cell t is bits b t to b t + b - 1 of all
pieces, so the pieces and the fields of b bits form a square matrix, and the conversion is its
transposition. It exchanges bits of words of four or eight bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ostro.quant.planes.planes import CELL

MASKS = {1: 0x55, 2: 0x33, 4: 0x0F}
"""The lower half of every 2, 4 and 8 bits of a byte."""

SWAPS = ((3, 0x0A0A0A0A), (6, 0x00CC00CC), (12, 0x0000F0F0), (8, 0x0000FF00))
"""Exchanges of the bits of a word that a mask selects with those `shift` above. In this order they
move bit 4 s + j of 32 to bit s of byte j.
"""


def cells(field: Tensor, bits: int, run: int) -> Tensor:
    """A plane uint8 [..., cells, 4 bits] of the codes of a field uint8 [..., m] in runs of `run`.

    run: 4 bits, which is the order of cells; a multiple of 32; or 1 for codes of one bit.
    """
    width, turns = 4 * bits, 8 // bits
    if run == width:
        return field.unflatten(-1, (-1, width)).contiguous()
    if run == 1:
        return rotate(field).unflatten(-1, (-1, width))
    pieces = words(field.unflatten(-1, (-1, run // CELL, turns, width)))
    return stack(transpose(pieces.movedim(-2, 0), bits), -3).flatten(-4, -2)


def runs(plane: Tensor, run: int) -> Tensor:
    """The field of a plane: the inverse of `cells`."""
    width = plane.shape[-1]
    bits, turns = width // 4, CELL // width
    if run == width:
        return plane.flatten(-2)
    if run == 1:
        return rotate(plane.flatten(-2), back=True)
    pieces = words(plane.unflatten(-2, (-1, turns, run // CELL)))
    return stack(transpose(pieces.movedim(-3, 0), bits), -2).flatten(-4)


def words(field: Tensor) -> Tensor:
    """A copy of bytes, uint8 [..., m], as words of four or eight bytes, [..., words]."""
    dtype = torch.int64 if field.shape[-1] % 8 == 0 else torch.int32
    return field.clone(memory_format=torch.contiguous_format).view(dtype)


def transpose(x: Tensor, bits: int) -> Tensor:
    """Exchange field j of x[i] with field i of x[j] in each byte of words [8 / bits, ...]."""
    x = x.clone(memory_format=torch.contiguous_format)
    bytes_of_1 = int.from_bytes(b"\1" * x.dtype.itemsize, "little")
    step = 4 // bits
    while step:
        a, b = x.unflatten(0, (-1, 2, step)).unbind(1)
        shift = bits * step
        differing = (a >> shift).bitwise_xor_(b).bitwise_and_(MASKS[shift] * bytes_of_1)
        b ^= differing
        a ^= differing << shift
        step //= 2
    return x


def stack(x: Tensor, axis: int) -> Tensor:
    """Move the first axis of words to `axis`; uint8. Faster than a copy of `movedim`."""
    return torch.stack(x.unbind(), axis).view(torch.uint8)


def rotate(field: Tensor, *, back: bool = False) -> Tensor:
    """Move bit 4 s + j of every 32 to bit s of byte j, or back: uint8 [..., m]."""
    x = field.clone(memory_format=torch.contiguous_format).view(torch.int32)
    for shift, mask in reversed(SWAPS) if back else SWAPS:
        differing = (x >> shift).bitwise_xor_(x).bitwise_and_(mask)
        x ^= differing
        x ^= differing << shift
    return x.view(torch.uint8)
