"""The format in plain torch: w = q * scale, with one scale per row.

q int8 [..., n, k] within -127..127, scale float32 [..., n] = max |row| / 127. A row of zeros has
scale 0.
"""

import torch
from torch import Tensor


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [..., n, k] float -> (q, scale); the error is at most half a scale."""
    weight = weight.float()
    scale = weight.abs().amax(-1) / 127
    q = (weight / scale.clamp_min(torch.finfo(torch.float32).tiny)[..., None]).round()
    return q.to(torch.int8), scale


def dequantize(q: Tensor, scale: Tensor) -> Tensor:
    """q [..., n, k] int8, scale [..., n] -> [..., n, k] float32."""
    return q.float() * scale[..., None]
