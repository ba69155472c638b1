"""Token masks on CPU: NumPy unpacks the bits of a row, torch writes the row once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def mask(logits: Tensor, rows: Tensor, bits: Tensor) -> Tensor:
    """See the package."""
    excluded = np.unpackbits((~bits).numpy().view(np.uint8), axis=1, bitorder="little")
    each = torch.from_numpy(excluded).view(torch.bool)[:, : logits.shape[1]]
    for row, tokens in zip(rows.tolist(), each, strict=True):
        logits[row].masked_fill_(tokens, float("-inf"))
    return logits
