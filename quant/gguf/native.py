"""Planes on CPU: multiplied as they lie for a few rows of x, or written out as floats."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ostro.core.native import ADDRESS, INT, functions, load
from ostro.quant.gguf.planes import Int8

LIBRARY = load(Path(__file__).with_suffix(".cpp"))
PRODUCT = functions(LIBRARY, "q8_0_product", ADDRESS, INT, ADDRESS, ADDRESS, INT, INT, ADDRESS)
DEQUANTIZE = functions(LIBRARY, "q8_0_dequantize", ADDRESS, ADDRESS, INT, ADDRESS)
FEW = 12  # rows of x up to which `product` beats writing out bfloat16 for a matmul


def product(x: Tensor, planes: Int8) -> Tensor:
    """x [t, k] -> x W^T [t, n], accumulated in float32. No row depends on the others, bit for bit.

    x is float32, bfloat16 or float16; planes are contiguous, as `take` leaves them.
    """
    n, groups, _ = planes.q.shape
    rows = x.float().contiguous()
    y = torch.empty(len(x), n, dtype=x.dtype)
    PRODUCT[x.dtype](
        rows.data_ptr(),
        len(rows),
        planes.q.data_ptr(),
        planes.d.data_ptr(),
        n,
        groups,
        y.data_ptr(),
    )
    return y


def dequantize(planes: Int8, dtype: torch.dtype) -> Tensor:
    """See `Int8.dequantize`: the same numbers."""
    w = torch.empty(*planes.q.shape[:-2], planes.q.shape[-2:].numel(), dtype=dtype)
    DEQUANTIZE[dtype](planes.q.data_ptr(), planes.d.data_ptr(), planes.d.numel(), w.data_ptr())
    return w
