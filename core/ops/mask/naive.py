"""Token masks in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def mask(logits: Tensor, rows: Tensor, bits: Tensor) -> Tensor:
    """See the package."""
    shifts = torch.arange(32, device=bits.device, dtype=torch.int32)
    allowed = (bits[:, :, None] >> shifts & 1).flatten(1)[:, : logits.shape[1]].bool()
    logits[rows] = logits[rows].masked_fill(~allowed, float("-inf"))
    return logits
