"""Read and write the fields of ggml blocks.

Each format has its own block layout, but all contain the same parts: codes and their scales.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Parts(NamedTuple):
    """Decoded blocks [..., bytes], with the names of `quant.planes.planes`:

        w = d * scale * (value(q) - zero) + m * offset

    q uint8 [..., k], each below 2 ** `bits`; its value is the code itself, or table[q] if there is
    a `table`. scale and offset [..., g] are shared by k / g adjacent weights each, d and m [..., 1]
    by all k. None means 1, for the offset 0.
    """

    bits: int
    q: Tensor
    scale: Tensor
    zero: int = 0
    offset: Tensor | None = None
    table: tuple[int, ...] | None = None
    d: Tensor | None = None
    m: Tensor | None = None


def weights(parts: Parts) -> Tensor:
    """Dequantize parts: float32 [..., k]."""
    if parts.table is None:
        value = parts.q.float() - parts.zero
    else:
        value = torch.tensor(parts.table, device=parts.q.device).float()[parts.q.int()]
    scale = _times(parts.scale, parts.d)
    w = value.unflatten(-1, (scale.shape[-1], -1)) * scale[..., None]
    if parts.offset is not None:
        w += _times(parts.offset, parts.m)[..., None]
    return w.flatten(-2)


def _times(fine: Tensor, coarse: Tensor | None) -> Tensor:
    return fine.float() if coarse is None else fine.float() * coarse.float()


def numbers(field: Tensor, dtype: torch.dtype) -> Tensor:
    """Reinterpret the bytes of a field of every block, [..., m] uint8, as [..., m / size] `dtype`.

    Copies the bytes, since fields are not aligned.
    """
    return field.clone(memory_format=torch.contiguous_format).view(dtype)


def half(field: Tensor) -> Tensor:
    """Float16 numbers, [..., 2 m] uint8 -> [..., m]."""
    return numbers(field, torch.float16)


def words(field: Tensor) -> Tensor:
    """Unsigned 16-bit numbers, [..., 2 m] uint8 -> int32 [..., m]."""
    return numbers(field, torch.int16).int() & 0xFFFF


def codes(field: Tensor, bits: int, run: int = 1) -> Tensor:
    """Unpack codes of `bits` bits, several per byte: [..., m] uint8 -> [..., 8 m / bits] uint8.

    Bytes are grouped in runs of `run`. The lowest bits of a run's bytes are its first `run` codes,
    the next bits the next ones, and so on. With runs of one byte, codes are in order.
    """
    runs = field.unflatten(-1, (-1, 1, run))
    return (runs >> _shifts(field, bits) & (1 << bits) - 1).flatten(-3)


def field(codes: Tensor, bits: int, run: int = 1) -> Tensor:
    """Pack codes into bytes, the inverse of `codes`; higher bits of the codes are ignored."""
    turns = (codes & (1 << bits) - 1).unflatten(-1, (-1, 8 // bits, run))
    return (turns << _shifts(codes, bits)).sum(-2, dtype=torch.uint8).flatten(-2)


def _shifts(codes: Tensor, bits: int) -> Tensor:
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)[:, None]


def pieces(words: Tensor, bits: int, count: int) -> Tensor:
    """Split the low bits of integers into `count` numbers of `bits` bits: [..., m, count]."""
    shifts = torch.arange(0, bits * count, bits, dtype=words.dtype, device=words.device)
    return words[..., None] >> shifts & (1 << bits) - 1


def raw(numbers: Tensor) -> Tensor:
    """The bytes of numbers of `size` bytes: [..., m] -> [..., m size] uint8."""
    return numbers.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def minus(half: Tensor) -> Tensor:
    """Flip the sign bit of float16 values, also of NaN: applied twice, it restores all bits."""
    return (half.view(torch.int16) ^ -(1 << 15)).view(torch.float16)
