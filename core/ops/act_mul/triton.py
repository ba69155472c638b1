"""The gated activation in Triton: a program computes BLOCK columns of one row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.core.errors import ConfigError, nearest
from ostro.core.ops.rows import dense_rows

ACTS = ("silu", "gelu", "gelu_tanh", "relu")
BLOCK = 1024


def act_mul(x: Tensor, act: str) -> Tensor:
    """See the package. Raises ConfigError on an unknown activation."""
    if act not in ACTS:
        known = ", ".join(ACTS)
        raise ConfigError(
            f"hidden_act={act!r} is not supported{nearest(act, ACTS)}; expected one of {known}"
        )
    n = x.shape[-1] // 2
    rows = dense_rows(x.reshape(-1, 2 * n))
    y = torch.empty((*x.shape[:-1], n), dtype=x.dtype, device=x.device)
    grid = (rows.shape[0], triton.cdiv(n, BLOCK))
    act_mul_kernel[grid](rows, y, n, rows.stride(0), ACT=act, BLOCK=BLOCK)
    return y


@triton.jit
def act_mul_kernel(x, y, n, stride, ACT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < n
    gate = tl.load(x + row * stride + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x + row * stride + n + column, mask=mask, other=0.0).to(tl.float32)
    value = activate(gate, ACT) * up
    tl.store(y + row * n + column, value.to(y.dtype.element_ty), mask=mask)


@triton.jit
def activate(x, ACT: tl.constexpr):
    """The activation ACT of a float32 tile; also called by kernels that fuse it."""
    if ACT == "silu":
        x = x * tl.sigmoid(x)
    elif ACT == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACT == "gelu_tanh":
        # 0.5 (1 + tanh z) is sigmoid(2 z)
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:
        x = tl.maximum(x, 0.0)
    return x
