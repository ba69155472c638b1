"""Rows of inputs as Triton kernels read them."""

from __future__ import annotations

from torch import Tensor


def dense_rows(x: Tensor) -> Tensor:
    """x [..., d], or a copy of it if its last dimension is not contiguous.

    Kernels compute the addresses of a row from its start: of a transposed view they would read
    other elements. cuBLAS and torch take such views.
    """
    return x if x.stride(-1) == 1 else x.contiguous()
