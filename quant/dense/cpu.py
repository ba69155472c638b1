"""Dense matmul on CPU: one copy of the weight, in the layout that is the fastest on this CPU.

A packed weight has one of three layouts. *Plain* is the weight itself [n, k], on CPUs with AMX
tiles: oneDNN reads its rows at memory bandwidth if it is the left operand of a narrow matmul.
*Panels* (panels.py) are for bfloat16 weights on CPUs with AVX512-BF16 or without AVX-512; the
latter multiply them with x in float32 as well. *Blocked* (`Tensor.is_mkldnn`) is oneDNN's own
order, on all other CPUs, where oneDNN would reorder a plain weight at each call. Measured on two
cores, bf16, all 113 matmuls of a 0.6B decoder, milliseconds by rows of x:

    rows                           1      8     32     64    512 (without the head)
    AMX     F.linear              70     76     86    123    219
            plain, as below       51     59     78    115    219
            blocked               57     58     70     86    242
    AVX-512 F.linear              80    116    255
            plain, as below      132    129    236
            blocked               63     88    220

float32 on the AMX machine: F.linear 82 ms for one row and 1.0 TFLOP/s for many, within 20 % of
blocked; from 8 to 64 rows the narrow matmul takes 170 ms, F.linear 230 to 270.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro.quant.dense import panels
from ostro.quant.dense.panels import Panels

LINE = 64  # bytes of a cache line

# Rows of x between which the weight is the left operand: (first, last), by dtype.
NARROW = {torch.bfloat16: (2, 64), torch.float32: (8, 64)}


def packable(dtype: torch.dtype) -> bool:
    """Whether `pack` has a layout for x of this dtype on this CPU."""
    return is_blockable(dtype) or panels.supported(dtype)


def is_blockable(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies this dtype on this CPU."""
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32 and torch.backends.mkldnn.is_available()


def pack(weight: Tensor, dtype: torch.dtype | None = None) -> Tensor | Panels:
    """Convert a weight [n, k] to the layout of `matmul`: the same tensor (plain), or a copy.

    x has `dtype`, by default the weight's. Panels keep bfloat16 weights as they are; in the other
    layouts a weight has the dtype of x.
    """
    dtype = dtype or weight.dtype
    if panels.packable(weight, dtype):
        return Panels(weight)
    weight = weight.to(dtype)
    if not is_blockable(weight.dtype):
        return weight.contiguous()
    if torch.cpu._is_amx_tile_supported():
        weight = weight.contiguous()
        # A tensor mapped from a file is rarely aligned to cache lines: 15 to 20 % slower.
        return weight.clone() if weight.data_ptr() % LINE else weight
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)


def unpack(packed: Tensor | Panels) -> Tensor:
    """The weight [n, k] that was packed, bit-identical; a plain one is returned without a copy."""
    if isinstance(packed, Panels):
        return packed.unpack()
    return packed.to_dense() if packed.is_mkldnn else packed


def layout_of(packed: Tensor | Panels) -> str:
    """The name of a layout: "panels", "blocked" or "plain"."""
    if isinstance(packed, Panels):
        return "panels"
    return "blocked" if packed.is_mkldnn else "plain"


@cache
def blocked() -> Callable[..., Tensor]:
    """The op for blocked weights, cached because resolving its overload is slow."""
    found: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default
    return found


def matmul(x: Tensor, packed: Tensor | Panels) -> Tensor:
    """x [..., k], weight [n, k] packed for its dtype -> [..., n]; float32 accumulation."""
    if isinstance(packed, Panels):
        return packed.matmul(x)
    if x.ndim != 2:
        return matmul(x.reshape(-1, x.shape[-1]), packed).view(*x.shape[:-1], packed.shape[0])
    if packed.is_mkldnn:
        return blocked()(x, packed, None, "none", [], "")
    rows = x.shape[0]
    if rows == 1 and x.dtype == torch.bfloat16:
        return torch.mv(packed, x[0])[None]
    first, last = NARROW.get(x.dtype, (1, 0))
    if first <= rows <= last:
        return torch.mm(packed, x.t()).t().contiguous()
    return F.linear(x, packed)
