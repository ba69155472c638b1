"""CPU kernels of MXFP4: direct products for few rows per expert, dequantization for many."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ostro.ops import native

LIBRARY = native.load(Path(__file__).with_suffix(".cpp"))
ADDRESS, INT = native.ADDRESS, native.INT
KINDS = (ADDRESS, ADDRESS, ADDRESS, ADDRESS, INT, INT, INT, ADDRESS)
GROUPED = native.functions(LIBRARY, "mxfp4_grouped", *KINDS)
DEQUANTIZE = native.functions(LIBRARY, "mxfp4_dequantize", ADDRESS, ADDRESS, INT, ADDRESS)
BLOCKS = native.Arg("... blocks 16", torch.uint8)
EXPONENTS = native.Arg("... blocks", torch.uint8)
DEQUANTIZE_SIGNATURE = native.Signature("mxfp4_dequantize", q=BLOCKS, e=EXPONENTS)
GROUPED_SIGNATURE = native.Signature(
    "mxfp4_grouped",
    {"32 columns in a block": lambda n: n["k"] == 32 * n["blocks"]},
    q=native.Arg("experts n blocks 16", torch.uint8),
    e=native.Arg("experts n blocks", torch.uint8),
    x=native.Arg("rows k", strided="rows k"),
    expert_of_row=native.Arg("rows", torch.int64),
)
DENSE_ROWS = 12  # mean rows per expert from which dequantizing is faster, measured for Q8_0


def dequantize(q: Tensor, e: Tensor, dtype: torch.dtype) -> Tensor:
    """See `naive`: the same bits."""
    q, e = q.contiguous(), e.contiguous()
    DEQUANTIZE_SIGNATURE(q, e)
    w = torch.empty(*e.shape[:-1], e.shape[-1] * 32, dtype=dtype)
    DEQUANTIZE[dtype](q.data_ptr(), e.data_ptr(), e.numel(), w.data_ptr())
    return w


def grouped_matmul(x: Tensor, q: Tensor, e: Tensor, expert_of_row: Tensor) -> Tensor:
    """See `naive`; sums in float32."""
    if len(x) < DENSE_ROWS * len(q):
        return grouped_matmul_deterministic(x, q, e, expert_of_row)
    y = x.new_empty(len(x), q.shape[1])
    rows = torch.bincount(expert_of_row, minlength=len(q)).tolist()
    for i, (rows_x, out) in enumerate(zip(x.split(rows), y.split(rows), strict=True)):
        if len(rows_x):
            torch.mm(rows_x, dequantize(q[i], e[i], x.dtype).t(), out=out)
    return y


def grouped_matmul_deterministic(x: Tensor, q: Tensor, e: Tensor, expert_of_row: Tensor) -> Tensor:
    """See `naive`; batch-invariant."""
    GROUPED_SIGNATURE(q, e, x, expert_of_row)
    n, blocks = e.shape[1:]
    rows = x.float().contiguous()
    y = x.new_empty(len(x), n)
    GROUPED[x.dtype](
        rows.data_ptr(),
        q.data_ptr(),
        e.data_ptr(),
        expert_of_row.data_ptr(),
        *(len(x), n, blocks),
        y.data_ptr(),
    )
    return y
