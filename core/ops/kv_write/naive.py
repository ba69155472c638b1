"""Writing into pages in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def kv_write(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """See the package."""
    padding = slots < 0
    if padding.any():
        slots, k, v = slots[~padding], k[~padding], v[~padding]
    block = k_cache.shape[2]
    blocks, places = slots // block, slots % block
    for rows, cache in ((k, k_cache), (v, v_cache)):
        bits = torch.uint8 if cache.dtype.itemsize == 1 else cache.dtype
        cache.view(bits)[blocks, :, places] = rows.to(cache.dtype).view(bits)
