"""Token masks in Triton: a program masks BLOCK tokens of one row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ostro.core.ops.rows import check_dense_rows, dense_rows

BLOCK = 1024


def mask(logits: Tensor, rows: Tensor, bits: Tensor) -> Tensor:
    """See the package."""
    vocabulary = logits.shape[1]
    if not rows.numel():
        return logits
    check_dense_rows("mask", logits=logits)
    bits = dense_rows(bits)
    grid = (rows.numel(), triton.cdiv(vocabulary, BLOCK))
    mask_kernel[grid](logits, rows, bits, vocabulary, logits.stride(0), bits.stride(0), BLOCK=BLOCK)
    return logits


@triton.jit
def mask_kernel(logits, rows, bits, vocabulary, logits_row, bits_row, BLOCK: tl.constexpr):
    entry = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + entry)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocabulary
    word = tl.load(bits + entry * bits_row + token // 32, mask=inside, other=-1)
    excluded = ((word >> (token % 32)) & 1) == 0
    tl.store(logits + row * logits_row + token, float("-inf"), mask=inside & excluded)
