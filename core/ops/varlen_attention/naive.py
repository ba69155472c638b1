"""Attention within sequences in plain torch, one sequence after the other, in float32."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bounds: Sequence[int],
    scale: float,
    window: int = 0,
    causal: bool = False,
) -> Tensor:
    """See the package."""
    group = q.shape[1] // k.shape[1]
    out = q.new_empty(q.shape[0], q.shape[1], v.shape[2])
    for start, stop in pairwise(bounds):
        keys, values = (x[start:stop].float().repeat_interleave(group, 1) for x in (k, v))
        scores = torch.einsum("nhd,lhd->hnl", q[start:stop].float(), keys) * scale
        weights = (scores + mask(stop - start, window, causal, q.device)).softmax(-1)
        out[start:stop] = torch.einsum("hnl,lhd->nhd", weights, values).to(q.dtype)
    return out


def mask(length: int, window: int, causal: bool, device: torch.device) -> Tensor:
    """The attention mask [length, length] float32: 0 if row i attends to row j, else -inf."""
    place = torch.arange(length, device=device)
    distance = place - place[:, None]
    hidden = (distance > 0) if causal else torch.zeros_like(distance, dtype=torch.bool)
    if window > 0:
        hidden |= distance.abs() >= window
    return torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -torch.inf)
