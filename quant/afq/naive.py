"""MLX's affine format in plain torch: the byte layout and the reference implementation.

A row of k weights is k / g groups; w = code * scale + bias, with the scale and bias of its group.
The codes of a row, b bits each, are packed without gaps in little-endian words, lowest bits first:
code j begins at bit b j of the row, so that codes of 3, 5 and 6 bits cross word boundaries.

    weight    uint32 [..., k b / 32]
    scales    floats [..., k / g]
    biases    as scales

Eight codes are b bytes, whatever b is. Source: mlx.core.quantize, mode "affine".
"""

from __future__ import annotations

import torch
from torch import Tensor

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
SMALLEST = 1e-7
RUN = 2**16  # groups quantized at a time: bounds the memory of float32 temporaries


def unpack(words: Tensor, bits: int) -> Tensor:
    """words uint32 [..., k b / 32] -> codes uint8 [..., k]."""
    octets = words.contiguous().view(torch.uint8).unflatten(-1, (-1, bits))
    run = sum((octets[..., i].long() << 8 * i for i in range(1, bits)), octets[..., 0].long())
    codes = [(run >> bits * j & (1 << bits) - 1).to(torch.uint8) for j in range(8)]
    return torch.stack(codes, -1).flatten(-2)


def pack(codes: Tensor, bits: int) -> Tensor:
    """codes uint8 [..., k], k a multiple of 32 -> words uint32 [..., k b / 32]."""
    eights = codes.unflatten(-1, (-1, 8))
    run = sum((eights[..., j].long() << bits * j for j in range(1, 8)), eights[..., 0].long())
    octets = [(run >> 8 * i & 255).to(torch.uint8) for i in range(bits)]
    return torch.stack(octets, -1).flatten(-2).view(torch.uint32)


def dequantize(words: Tensor, scales: Tensor, biases: Tensor, bits: int) -> Tensor:
    """-> float32 [..., k], equal to MLX for float32 scales.

    float16 scales are widened to float32 first; MLX computes in float16 and rounds in between.
    """
    codes = unpack(words, bits).float().unflatten(-1, (scales.shape[-1], -1))
    return (codes * scales.float()[..., None] + biases.float()[..., None]).flatten(-2)


def quantize(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """weight [..., k] -> codes uint8 [..., k], scales and biases [..., k / group] in its dtype.

    As in MLX, the end of a group's range with the larger magnitude becomes the bias, and the step
    is adjusted so that 0 is a code. Codes are computed with the rounded scales. For a float16
    weight, MLX uses the scales before rounding, which increases the error at 8 bits by a quarter.
    """
    groups = weight.reshape(-1, group).split(RUN)
    codes, *scales = (
        torch.cat(parts)
        for parts in zip(*(quantize_groups(part, 2**bits - 1) for part in groups), strict=True)
    )
    shape = (*weight.shape[:-1], -1)
    scale, bias = (values.view(shape) for values in scales)
    return codes.view(weight.shape), scale, bias


def quantize_groups(weight: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Groups [m, g] -> codes 0..steps uint8 [m, g], scales and biases [m]."""
    groups = weight.float()
    low, high = groups.aminmax(dim=-1)
    low_is_edge = low.abs() > high.abs()
    step = ((high - low) / steps).clamp_min(SMALLEST)
    scale, edge = torch.where(low_is_edge, step, -step), torch.where(low_is_edge, low, high)
    zero = (edge / scale).round()
    scale = torch.where(zero == 0, scale, edge / zero).to(weight.dtype)
    bias = torch.where(zero == 0, 0, edge).to(weight.dtype)
    codes = ((groups - bias.float()[..., None]) / scale.float()[..., None]).round()
    return codes.clamp(0, steps).to(torch.uint8), scale, bias
