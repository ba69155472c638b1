"""Attention in plain torch, one sequence at a time: the reference for all kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ostro.core.ops.kv_write.scaled import Scaled, widen

if TYPE_CHECKING:
    from ostro.core.ops.attention import AttentionMetadata


def attention(
    q: Tensor,
    k_cache: Tensor | Scaled,
    v_cache: Tensor | Scaled,
    batch: AttentionMetadata,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    alibi: Tensor | None = None,
) -> Tensor:
    """See the package. Computes in float32, for all dtypes.

    The layout is read from the device, so this cannot run while a graph is captured. Keys that no
    row attends to are not read: they may have any value, even NaN.
    """
    starts, lengths = batch.starts.tolist(), batch.lengths.tolist()
    full = [0] * len(lengths) if batch.full is None else batch.full.tolist()
    out = q.new_zeros(q.shape[0], q.shape[1], v_cache.shape[-1])
    for s, length in enumerate(lengths):
        rows = slice(starts[s], starts[s + 1])
        if length == 0 or rows.start == rows.stop:
            continue
        first = max(0, length - (rows.stop - rows.start) + 1 - window) if window > 0 else 0
        keys = gather_pages(k_cache, batch.table[s], length)[:, first:]
        values = gather_pages(v_cache, batch.table[s], length)[:, first:]
        features = (scale, window, softcap, sinks, alibi, bool(full[s]))
        out[rows] = attend(q[rows], keys, values, *features).to(q.dtype)
    return out


def gather_pages(cache: Tensor | Scaled, table: Tensor, length: int) -> Tensor:
    """Gather one sequence from a cache [blocks, kv, block, d] as [kv, length, d] float32."""
    ids = table[: -(-length // cache.shape[2])].long()
    if isinstance(cache, Scaled):
        pages = widen(cache.elements[ids], cache.scales[ids])
    else:
        pages = cache[ids].float()
    return pages.transpose(0, 1).flatten(1, 2)[:, :length]


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
    alibi: Tensor | None,
    full: bool = False,
) -> Tensor:
    """Attention of the last n positions of one sequence.

    q [n, h, d], keys [kv, length, d], values [kv, length, dv] -> [n, h, dv]. If `full`, rows attend
    to later positions as well.
    """
    n, h, _ = q.shape
    kv, length, _ = keys.shape
    grouped = q.float().transpose(0, 1).unflatten(0, (kv, h // kv))
    scores = torch.einsum("kgnd,kld->kgnl", grouped, keys).flatten(0, 1) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)

    position = torch.arange(length - n, length, device=q.device)[:, None]
    distance = torch.arange(length, device=q.device) - position
    if alibi is not None:
        scores = scores + alibi[:, None, None].float() * distance
    hidden = (distance > 0) & (not full)
    if window > 0:
        hidden = hidden | (distance <= -window)
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        sink = sinks.float()[:, None, None].expand(h, n, 1)
        weights = torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)

    grouped = weights.unflatten(0, (kv, h // kv))
    return torch.einsum("kgnl,klv->kgnv", grouped, values).flatten(0, 1).transpose(0, 1)
