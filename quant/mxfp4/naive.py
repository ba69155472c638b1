"""MXFP4 in plain torch: the byte layouts and the reference implementation.

A row of k weights is k / 32 blocks. A block is an exponent e and 32 codes c of four bits, a sign
above a magnitude: w = VALUES[c] * 2 ** (e - 127). The OCP's Microscaling specification (2023) calls
the codes E2M1 and the exponents E8M0. Two codes share a byte; files differ in the
position of the second one:

    here      q uint8 [..., n, k / 32, 16], e uint8 [..., n, k / 32]; byte j holds code j in its
              low half and code j + 16 in its high half
    GGUF      uint8 [..., n, k / 32 * 17]: e, then the 16 bytes as here (llama.cpp's block_mxfp4)
    the hub   blocks uint8 [..., n, k / 32, 16] and scales uint8 [..., n, k / 32]; byte j holds
              codes 2j and 2j + 1 (gpt-oss); UQFF files have the blocks of a row end to end, uint8
              [..., n, k / 2], and MLX the same bytes as uint32 [..., n, k / 8]
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Kernel
from ostro.ops import native

BLOCK = 32
CHUNK = 2**17  # blocks quantized at a time: bounds the memory of float32 temporaries
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)

DEQUANTIZE = (
    Kernel(
        name="native",
        call=f"{__package__}.native:dequantize",
        devices=("cpu",),
        dtypes=native.DTYPES,
        deterministic=True,
    ),
    Kernel(name="naive", call=f"{__name__}:dequantize", deterministic=True),
)
GROUPED = (
    Kernel(
        name="triton",
        call=f"{__package__}.kernels:grouped_matmul",
        devices=("cuda",),
        dtypes=native.DTYPES,
    ),
    Kernel(
        name="triton_deterministic",
        call=f"{__package__}.kernels:grouped_matmul_deterministic",
        devices=("cuda",),
        dtypes=native.DTYPES,
        deterministic=True,
    ),
    Kernel(
        name="native",
        call=f"{__package__}.native:grouped_matmul",
        devices=("cpu",),
        dtypes=native.DTYPES,
    ),
    Kernel(
        name="native_deterministic",
        call=f"{__package__}.native:grouped_matmul_deterministic",
        devices=("cpu",),
        dtypes=native.DTYPES,
        deterministic=True,
    ),
    Kernel(name="naive", call=f"{__name__}:grouped_matmul", deterministic=True),
)


def dequantize(q: Tensor, e: Tensor, dtype: torch.dtype) -> Tensor:
    """q [..., n, g, 16], e [..., n, g] -> [..., n, 32 g], exact in float32 and rounded once.

    The exponent 255, reserved for NaN in the specification, means 2 ** 128 as in transformers;
    `storage` rejects exponents above 240.
    """
    codes = torch.cat((q & 15, q >> 4), -1)
    values = torch.tensor(VALUES, device=q.device)[codes.int()]
    return torch.ldexp(values, e.int()[..., None] - 127).flatten(-2).to(dtype)


def grouped_matmul(x: Tensor, q: Tensor, e: Tensor, expert_of_row: Tensor) -> Tensor:
    """`core.ops.grouped_matmul` with weights q [experts, n, g, 16] and e [experts, n, g]; computes
    in x's dtype.
    """
    y = x.new_empty(x.shape[0], q.shape[1])
    for row, expert in enumerate(expert_of_row.tolist()):
        y[row] = F.linear(x[row], dequantize(q[expert], e[expert], x.dtype))
    return y


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [..., n, 32 g] -> q uint8 [..., n, g, 16], e uint8 [..., n, g].

    The exponent is that of the largest magnitude divided by 6, rounded down (magnitudes up to 12
    are clipped to 6) or up (no clipping), whichever has the smaller squared error. The exponents of
    the specification, of MLX and of mistral.rs are each one of the two. Ties round to the larger
    value.
    """
    found = [quantize_blocks(chunk.float()) for chunk in weight.reshape(-1, BLOCK).split(CHUNK)]
    q, e = (torch.cat(parts) for parts in zip(*found, strict=True))
    shape = (*weight.shape[:-1], weight.shape[-1] // BLOCK)
    return q.view(*shape, -1), e.view(shape)


def quantize_blocks(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """`quantize` of blocks float32 [m, 32]."""
    largest = blocks.abs().amax(-1)
    power = torch.where(largest > 0, (largest / VALUES[7]).log2().floor(), 0)
    powers = [(power + i).clamp(-127, 127) for i in (0, 1)]
    (low, low_error), (high, high_error) = (encode_with(blocks, each) for each in powers)
    first = low_error <= 4 * high_error
    codes = torch.where(first[..., None], low, high) | (blocks < 0).to(torch.uint8) * 8
    e = torch.where(first, powers[0], powers[1]) + 127
    return codes[..., :16] | codes[..., 16:] << 4, e.to(torch.uint8)


def encode_with(blocks: Tensor, power: Tensor) -> tuple[Tensor, Tensor]:
    """Codes of magnitudes uint8 [m, 32] with the scale 2 ** power [m], and squared errors [m].

    The errors are in units of the scale, in which float32 neither overflows nor underflows.
    """
    sizes = torch.ldexp(blocks.abs(), -power[..., None])
    midpoints = [(low + high) / 2 for low, high in pairwise(VALUES[:8])]
    codes = torch.bucketize(sizes, torch.tensor(midpoints, device=blocks.device), right=True)
    error = sizes - torch.tensor(VALUES, device=blocks.device)[codes]
    return codes.to(torch.uint8), error.square().sum(-1)


def from_hub(blocks: Tensor) -> Tensor:
    """Reorder the hub's bytes [..., 16] to the order of this module."""
    codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2)
    return codes[..., :16] | codes[..., 16:] << 4


def to_hub(q: Tensor) -> Tensor:
    codes = torch.cat((q & 15, q >> 4), -1)
    return codes[..., ::2] | codes[..., 1::2] << 4
