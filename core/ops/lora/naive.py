"""LoRA in plain torch, one row at a time: the reference for all kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def lora(
    x: Tensor,
    y: Tensor,
    a: Tensor,
    b: Tensor,
    widths: Sequence[int],
    pages: Tensor,
    scales: Tensor,
    mixture: Tensor,
    expert: Tensor | None = None,
    experts: int = 1,
) -> Tensor:
    """See the package. No synchronization: the host does not read device values."""
    mine = mixture.expand(x.shape[0]).long()
    held, weights = pages[mine], scales[mine]
    place = held.clamp(min=0).long() * experts
    if expert is not None:
        place = place + expert[:, None]
    for row, out in enumerate(y):
        there = held[row] >= 0
        h = (a[place[row]].float() @ x[row].float()) * weights[row][:, None, None]
        more = expand(h, b[place[row]].float(), widths)
        # Page -1 is clamped to page 0, which belongs to another adapter: mask its contribution.
        total = out.float() + torch.where(there[:, None], more, 0.0).sum(0)
        out.copy_(torch.where(there.any(), total.to(y.dtype), out))
    return y


def expand(h: Tensor, b: Tensor, widths: Sequence[int]) -> Tensor:
    """Multiply h [K, parts, 16] by b [K, 16, n], each part by its own columns -> [K, n]."""
    parts = b.split(list(widths), -1)
    return torch.cat([h[:, i, None] @ part for i, part in enumerate(parts)], -1)[:, 0]
