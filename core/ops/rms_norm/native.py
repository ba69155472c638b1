"""Root-mean-square norm on CPU in C++: two vectorized passes over each row."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ostro.core.native import ADDRESS, FLOAT, INT, Arg, Signature, functions, load

KINDS = (ADDRESS, INT, INT, INT, INT, INT, ADDRESS, ADDRESS, FLOAT, ADDRESS, ADDRESS)
RMS_NORM = functions(load(Path(__file__).with_suffix(".cpp")), "rms_norm", *KINDS)
SIGNATURE = Signature(
    "rms_norm",
    weight=Arg("d", torch.float32),
    x=Arg("... d", strided="..."),
    residual=Arg("... d", optional=True),
)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """See the package."""
    if x.ndim > 3 or residual is not None or x.stride()[-1:] != (1,):
        x = x.contiguous()
    if residual is not None:
        residual = residual.contiguous()
    if weight.dtype != torch.float32:
        weight = weight.float()
    SIGNATURE(weight, x, residual)
    heads = x if x.ndim == 3 else x.view(-1, 1, x.shape[-1])
    y = torch.empty(x.shape, dtype=x.dtype)
    total, add = x, None
    if residual is not None:
        total, add = torch.empty(x.shape, dtype=x.dtype), residual.data_ptr()
    RMS_NORM[x.dtype](
        heads.data_ptr(),
        *heads.shape,
        *heads.stride()[:2],
        add,
        weight.data_ptr(),
        eps,
        y.data_ptr(),
        total.data_ptr(),
    )
    return y, total
