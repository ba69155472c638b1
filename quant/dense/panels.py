"""bfloat16 weights in panels of 64 rows, multiplied by native.cpp with x in bfloat16 or float32.

Products with a float32 x are those of the same weights in float32, from half the memory.

Measured on two Zen 4 cores, bf16, 24 matmuls of a 1B decoder (0.8 GB), milliseconds by rows of x,
beside oneDNN with its own blocked layout and with plain rows:

    rows          1      4      8     32     64    512
    panels       30     29     33     73    135    960
    blocked      43     34     34     79    138    937
    F.linear     60     53     54     97    173    972
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ostro.ops import native

PANEL = 64  # the constant of native.cpp

ADDRESS, INT = native.ADDRESS, native.INT
SIGNATURE = native.Signature(
    "matmul of panels",
    {"k == 2 * pairs": lambda sizes: sizes["k"] == 2 * sizes["pairs"]},
    panels=native.Arg(f"panels pairs {PANEL} 2", torch.bfloat16),
    x=native.Arg("rows k", strided="rows"),
)


class Kernels(NamedTuple):
    """The functions of native.cpp; `matmul` by the dtype of x."""

    matmul: Mapping[torch.dtype, Callable[..., None]]
    pack: Callable[..., None]
    unpack: Callable[..., None]


@cache
def kernels() -> Kernels:
    """Compile native.cpp. Raises ImportError if that fails."""
    library = native.load(Path(__file__).with_name("native.cpp"))
    move = (ADDRESS, INT, INT, ADDRESS)
    return Kernels(
        native.functions(library, "matmul", ADDRESS, INT, INT, ADDRESS, INT, INT, ADDRESS),
        native.function(library, "pack", *move),
        native.function(library, "unpack", *move),
    )


def packable(weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether this CPU multiplies panels with x in `dtype`, and a weight [n, k] fits them.

    k must be even, and at most an eighth of the panels may be padding.
    """
    n, k = weight.shape
    fits = weight.dtype == torch.bfloat16 and k % 2 == 0 and -n % PANEL <= n / 8
    return fits and supported(dtype)


def supported(dtype: torch.dtype) -> bool:
    """Whether panels, and not plain rows or oneDNN's blocks, are the fastest for x in `dtype`."""
    avx512_bf16 = torch.cpu._is_avx512_bf16_supported() and not torch.cpu._is_amx_tile_supported()
    avx2 = torch.cpu._is_avx2_supported() and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if not avx2 and not (avx512_bf16 and dtype == torch.bfloat16):
        return False
    if dtype not in (torch.bfloat16, torch.float32):
        return False
    try:
        kernels()
    except ImportError:
        return False
    return True


class Panels:
    """A weight [n, k] as bfloat16 [n / 64, k / 2, 64, 2], padded with zeros to whole panels."""

    def __init__(self, weight: Tensor) -> None:
        n, k = self.shape = tuple(weight.shape)
        weight = weight.contiguous()
        self.panels = weight.new_empty(-(-n // PANEL), k // 2, PANEL, 2)
        kernels().pack(weight.data_ptr(), n, k // 2, self.panels.data_ptr())

    @property
    def nbytes(self) -> int:
        return self.panels.nbytes

    def unpack(self) -> Tensor:
        """The weight [n, k], bit-identical."""
        n, k = self.shape
        weight = self.panels.new_empty(n, k)
        kernels().unpack(self.panels.data_ptr(), n, k // 2, weight.data_ptr())
        return weight

    def rows(self, ids: Tensor) -> Tensor:
        """ids [...] int64 -> rows of the weight [..., k]."""
        return self.panels[ids // PANEL, :, ids % PANEL].flatten(-2)

    def matmul(self, x: Tensor) -> Tensor:
        """x [..., k] -> [..., n] of the same dtype; float32 accumulation."""
        n, k = self.shape
        rows = x.reshape(-1, k)
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        SIGNATURE(self.panels, rows, n=n, k=k)
        y = torch.empty(len(rows), n, dtype=x.dtype)
        kernels().matmul[x.dtype](
            *(rows.data_ptr(), rows.stride(0), len(rows)),
            *(self.panels.data_ptr(), n, k, y.data_ptr()),
        )
        return y.view(*x.shape[:-1], n)
