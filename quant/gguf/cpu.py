"""Int8 planes on CPU: one pass over the bytes for a row or two, blocks of floats for more.

Both loops are compiled by torch.compile where there is a C++ compiler, once for all shapes. That
takes seconds, so `prepare` does it when a model is loaded. A compiled function asks at each call
whether its arguments are what it was compiled for, and compiles again where not: so whatever can
vary is settled before the call (inference tensors, a float32 row, no dimension of size 1).

bf16, two cores with AMX, a weight of 6144 x 1024, milliseconds for 1 and 256 rows: compiled 0.34
and 2.5, not compiled 2.6 and 4.2; a dense weight, twice the bytes, takes 0.32 and 1.45 from the
cache.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro.quant.gguf.planes import Int8

FEW = 2  # rows of x up to which the bytes are read once per row
BLOCK = {True: 1 << 23, False: 1 << 20}  # weights dequantized at a time, by whether compiled
WORTH = 1 << 20  # weights from which compiled loops gain more than their call costs


class Loops:
    """The two loops over int8 planes, compiled or as torch runs them."""

    def __init__(self, compiled: bool) -> None:
        self.compiled = compiled
        self.product: Callable[..., Tensor] = torch.compile(product) if compiled else product
        self.dequantize: Callable[..., Tensor] = (
            torch.compile(dequantize) if compiled else dequantize
        )

    def matmul(self, x: Tensor, planes: Int8) -> Tensor:
        """x [t, k] -> [t, n], accumulated in float32."""
        out = x.new_empty(len(x), len(planes.q))
        with torch.inference_mode():
            if self.compiled and len(x) <= FEW:
                for i, row in enumerate(x.to(torch.float32, copy=True)):
                    out[i] = self.product(row, planes.q, planes.d)
            else:
                self.multiply_blocks(x, planes, out)
        return out

    def multiply_blocks(self, x: Tensor, planes: Int8, out: Tensor) -> None:
        rows = max(2, BLOCK[self.compiled] // x.shape[1])
        for start in range(0, len(planes.q), rows):
            part = planes.take(slice(start, start + rows))
            unpack = self.dequantize if len(part.q) > 1 else dequantize
            out[:, start : start + rows] = F.linear(x, unpack(part.q, part.d, x.dtype))


def product(x: Tensor, q: Tensor, d: Tensor) -> Tensor:
    """x [k], q [n, k / 32, 32], d [n, k / 32] -> [n]. Flat: one sum for a row, not one a block."""
    return (q.float() * x.view(1, -1, q.shape[2]) * d.float().unsqueeze(-1)).sum((1, 2))


def dequantize(q: Tensor, d: Tensor, dtype: torch.dtype) -> Tensor:
    return q.float().mul_(d.float().unsqueeze(-1)).flatten(1).to(dtype)


def prepare(planes: Int8, dtype: torch.dtype) -> tuple[Loops, str]:
    """The loops for planes [n, k / 32, 32] and for x of a dtype, compiled by now, and why these."""
    n, groups, _ = planes.q.shape
    if planes.q.numel() < WORTH or min(n, groups) < 2:
        return Loops(compiled=False), "small, dequantized in blocks of rows"
    loops = compile_loops(dtype)
    if isinstance(loops, str):
        return Loops(compiled=False), f"dequantized in blocks of rows (torch.compile: {loops})"
    return loops, f"compiled product up to {FEW} rows, then blocks of rows"


@cache
def compile_loops(dtype: torch.dtype) -> Loops | str:
    """Compiled loops for weights of any shape, or why there are none."""
    from torch._dynamo import mark_dynamic
    from torch._inductor import config

    with torch.inference_mode(False):
        q, d = torch.ones(64, 4, 32, dtype=torch.int8), torch.ones(64, 4, dtype=torch.float16)
    with torch.inference_mode(), config.patch(compile_threads=1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loops = Loops(compiled=True)
        x = torch.ones(2, 4 * 32)[0]
        mark_dynamic(x, 0)
        mark_dynamic(q, (0, 1))
        mark_dynamic(d, (0, 1))
        try:
            loops.product(x, q, d)
            loops.dequantize(q, d, dtype)
        except RuntimeError as error:
            return " ".join(str(error).partition("\n\n")[0].split())
    return loops
