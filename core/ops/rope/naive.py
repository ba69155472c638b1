"""Rotary position embedding in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def rope(
    q: Tensor,
    k: Tensor,
    positions: Tensor,
    table: Tensor,
    interleaved: bool = False,
    sections: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """See the package."""
    cos, sin = angles(positions, table, sections)
    return rotate(q, cos, sin, interleaved), rotate(k, cos, sin, interleaved)


def angles(
    positions: Tensor, table: Tensor, sections: Sequence[int] | None
) -> tuple[Tensor, Tensor]:
    """The cosines and sines of each row, two [T, r/2]."""
    if sections is None:
        cos, sin = table[positions[0]].chunk(2, dim=-1)
        return cos, sin
    rows = torch.unflatten(table[positions], -1, (2, -1))
    parts = torch.split(rows, list(sections), dim=-1)
    cos, sin = torch.cat([part[i] for i, part in enumerate(parts)], dim=-1).unbind(1)
    return cos, sin


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate the first r dimensions of x [T, h, d] by angles with cos and sin [T, r/2]."""
    half = cos.shape[-1]
    turned, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    pair = (a * cos - b * sin, b * cos + a * sin)
    out = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat((out.to(x.dtype), rest), dim=-1)
