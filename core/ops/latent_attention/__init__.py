"""Latent attention (MLA): one latent per token for all heads, whose values are part of the keys.

    latent_attention(q, k_cache, v_cache, batch, scale) -> [T, h, rank]

The same as `ops.attention` with one kv head and without window, softcap, sinks and alibi: q
[T, h, rank + rope], k_cache [blocks, 1, block, rank + rope], v_cache the view of its first `rank`
dimensions. The kernel of this package reads a latent once for scores and sums, for as many heads as
fit a tile. If it does not fit the shapes, a kernel of `ops.attention` is selected; the naive one is
the reference for both.
"""

from collections.abc import Mapping
from typing import Any

import torch

from ostro.core.ops import attention
from ostro.core.ops.choose import Kernel


def fits(facts: Mapping[str, Any]) -> bool:
    """Return whether the widths of the latent and of the rotated key fit a tile."""
    rank, rest = facts["rank"], facts["head_dim"] - facts["rank"]
    return rank in (64, 128, 256, 512) and 0 < rest <= 64


KERNELS = (
    Kernel(
        name="triton_latent",
        call=f"{__name__}.triton:latent_attention",
        devices=("cuda",),
        dtypes=(torch.bfloat16, torch.float16),
        fits=fits,
    ),
    *attention.KERNELS,
)
