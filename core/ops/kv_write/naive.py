"""Write to KV cache pages in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ostro.core.ops.kv_write.scaled import Scaled, narrow


def kv_write(
    k: Tensor, v: Tensor, k_cache: Tensor | Scaled, v_cache: Tensor | Scaled, slots: Tensor
) -> None:
    """See the package."""
    padding = slots < 0
    if padding.any():
        slots, k, v = slots[~padding], k[~padding], v[~padding]
    block = k_cache.shape[2]
    blocks, places = slots // block, slots % block
    for rows, cache in ((k, k_cache), (v, v_cache)):
        if isinstance(cache, Scaled):
            elements, scales = narrow(rows, cache.dtype)
            cache.bits[blocks, :, places] = elements.view(torch.uint8)
            cache.scales[blocks, :, places] = scales
            continue
        # Few operations support float8: write the bytes.
        bits = torch.uint8 if cache.dtype.itemsize == 1 else cache.dtype
        cache.view(bits)[blocks, :, places] = rows.to(cache.dtype).view(bits)
