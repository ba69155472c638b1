"""Token masks on CPU: each byte of a mask looks up what its eight logits get, 0 or -inf."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional


def mask(logits: Tensor, rows: Tensor, bits: Tensor) -> Tensor:
    """See the package. A logit that is NaN stays it."""
    bytes_ = bits.contiguous().view(torch.uint8).int()
    for row, each in zip(rows.tolist(), bytes_, strict=True):
        logits[row] += functional.embedding(each, table()).flatten()[: logits.shape[1]]
    return logits


@cache
def table() -> Tensor:
    """[256, 8] float32: 0 where a byte has a bit, -inf elsewhere; the lowest bit first."""
    bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
    return torch.zeros(256, 8).masked_fill_(bits == 0, float("-inf"))
