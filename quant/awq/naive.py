"""AWQ in plain torch: the byte layout of its "gemm" version and the reference implementation.

A weight [n, k] is stored transposed; w = (code - zero) * scale, in groups of g columns along k.

    qweight   int32 [k, n / 8]      codes of 4 bits, packed along n
    qzeros    int32 [k / g, n / 8]  zeros, packed likewise
    scales    floats [k / g, n]

The code at bits 4 i of a word belongs to column ORDER[i] of its eight columns.

Source: AutoAWQ; compressed-tensors 0.20.0 reads it in the same way.
"""

from __future__ import annotations

import torch
from torch import Tensor

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
POSITIONS = (0, 4, 1, 5, 2, 6, 3, 7)
"""The position of each column in a word."""


def unpack(words: Tensor) -> Tensor:
    """words int32 [..., n / 8] -> codes uint8 [..., n]."""
    codes = [(words >> 4 * position & 15).to(torch.uint8) for position in POSITIONS]
    return torch.stack(codes, -1).flatten(-2)


def pack(codes: Tensor) -> Tensor:
    """codes uint8 [..., n] -> words int32 [..., n / 8]."""
    eights = codes.unflatten(-1, (-1, 8)).int()
    words = torch.zeros_like(eights[..., 0])
    for i, column in enumerate(ORDER):
        words |= eights[..., column] << 4 * i
    return words.contiguous()


def dequantize(qweight: Tensor, qzeros: Tensor, scales: Tensor) -> Tensor:
    """-> float32 [n, k]; AutoAWQ computes in float16 and rounds intermediate results."""
    codes, zeros = unpack(qweight).t(), unpack(qzeros).t()
    return dequantize_rows(slice(None), codes, scales.t(), zeros)


def dequantize_rows(rows: slice, codes: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """codes uint8 [n, k], scales floats and zeros uint8 [n, groups] -> float32 [rows, k]."""
    code = codes[rows].float().unflatten(-1, (scales.shape[-1], -1))
    return ((code - zeros[rows, :, None]) * scales[rows, :, None].float()).flatten(-2)
