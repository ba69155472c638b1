"""FLUX's adaptive layer norm in plain torch, and the list of its kernels.

    modulate(x, shift, scale, eps) -> y                     y = (1 + scale) * norm(x) + shift
    gate_add(x, y, gate) -> x                               x + gate * y
    gate_modulate(x, y, gate, shift, scale, eps) -> (y, x)  x = gate_add, y = modulate of that x

x, y [T, d], contiguous: T / n rows of each of n images, image by image; shift, scale, gate [n, d],
one vector per image (strided views allowed, last dimension contiguous). The norm is a layer norm
over d without weights. All values are computed in float32, and results are rounded to x's dtype.
Sums are clamped to the range of that dtype, since they overflow float16.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Kernel


def kernels(name: str) -> tuple[Kernel, ...]:
    return (
        Kernel(
            name="triton",
            call=f"{__package__}.kernels:{name}",
            devices=("cuda",),
            deterministic=True,
        ),
        Kernel(name="naive", call=f"{__name__}:{name}", deterministic=True),
    )


MODULATE, GATE_ADD, GATE_MODULATE = map(kernels, ("modulate", "gate_add", "gate_modulate"))


def modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    y = F.layer_norm(x.float(), x.shape[-1:], eps=eps)
    return (y * (1 + of_rows(scale, x)) + of_rows(shift, x)).to(x.dtype)


def gate_add(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    total = x.float() + of_rows(gate, x) * y.float()
    limit = torch.finfo(x.dtype)
    return total.clamp(limit.min, limit.max).to(x.dtype)


def gate_modulate(
    x: Tensor, y: Tensor, gate: Tensor, shift: Tensor, scale: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    x = gate_add(x, y, gate)
    return modulate(x, shift, scale, eps), x


def of_rows(vectors: Tensor, x: Tensor) -> Tensor:
    """[n, d] -> [T, d] float32: the vector of the image of each row of x."""
    return vectors.float().repeat_interleave(len(x) // len(vectors), 0)
