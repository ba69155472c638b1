"""LoRA on CPU in C++: two passes (shrink, expand) that read a page once for all its rows."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Array, c_int64
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from ostro.core.native import ADDRESS, INT, Arg, Signature, functions, load

CHUNK = 1024
"""Columns of x that are summed at a time; the same as in native.cpp."""

LORA = functions(
    load(Path(__file__).with_suffix(".cpp")),
    "lora",
    *(ADDRESS, INT, ADDRESS, INT, ADDRESS, ADDRESS, ADDRESS, INT, ADDRESS, ADDRESS, INT),
    *(ADDRESS, INT, ADDRESS, INT, INT, INT, ADDRESS),
)
SIGNATURE = Signature(
    "lora",
    {
        "a row of mixtures for each of t, or one for all": lambda n: n["rows"] in (1, n["t"]),
        "pages of all experts": lambda n: n["all_pages"] % n["experts"] == 0,
    },
    a=Arg("all_pages parts 16 k"),
    b=Arg("all_pages 16 n"),
    pages=Arg("mixtures slots", torch.int32),
    scales=Arg("mixtures slots", torch.float32),
    x=Arg("t k", strided="t"),
    y=Arg("t n", strided="t"),
    mixture=Arg("rows", torch.int32),
    expert=Arg("t", torch.int64, optional=True),
)


def lora(
    x: Tensor,
    y: Tensor,
    a: Tensor,
    b: Tensor,
    widths: Sequence[int],
    pages: Tensor,
    scales: Tensor,
    mixture: Tensor,
    expert: Tensor | None = None,
    experts: int = 1,
) -> Tensor:
    """See the package. Allocates h = A x, float32 [t, K, parts, chunks of k, 16]."""
    sizes = {"parts": len(widths), "n": sum(widths), "experts": experts}
    SIGNATURE(a, b, pages, scales, x, y, mixture, expert, **sizes)
    (t, k), (_, parts, rank, _), slots = x.shape, a.shape, pages.shape[1]
    h = torch.empty(t, slots, parts, -(-k // CHUNK), rank, dtype=torch.float32)
    LORA[x.dtype](
        x.data_ptr(),
        x.stride(0),
        y.data_ptr(),
        y.stride(0),
        a.data_ptr(),
        b.data_ptr(),
        numbers(tuple(widths)),
        parts,
        pages.data_ptr(),
        scales.data_ptr(),
        slots,
        mixture.data_ptr(),
        mixture.shape[0] > 1,
        None if expert is None else expert.data_ptr(),
        experts,
        t,
        k,
        h.data_ptr(),
    )
    return y


@cache
def numbers(widths: tuple[int, ...]) -> Array[c_int64]:
    """Widths as a C array of int64."""
    return (c_int64 * len(widths))(*widths)
