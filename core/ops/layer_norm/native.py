"""Layer norm on CPU in C++: three vectorized passes over each row."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ostro.core.native import ADDRESS, FLOAT, INT, Arg, Signature, functions, load

KINDS = (ADDRESS, *(INT,) * 5, *(ADDRESS,) * 3, FLOAT, ADDRESS, ADDRESS)
LAYER_NORM = functions(load(Path(__file__).with_suffix(".cpp")), "layer_norm", *KINDS)
SIGNATURE = Signature(
    "layer_norm",
    weight=Arg("d", torch.float32, optional=True),
    bias=Arg("d", torch.float32, optional=True),
    x=Arg("... d", strided="..."),
    residual=Arg("... d", optional=True),
)


def layer_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See the package."""
    if x.ndim > 3 or residual is not None or x.stride()[-1:] != (1,):
        x = x.contiguous()
    if residual is not None:
        residual = residual.contiguous()
    weight = None if weight is None else weight.float()
    bias = None if bias is None else bias.float()
    SIGNATURE(weight, bias, x, residual)
    heads = x if x.ndim == 3 else x.view(-1, 1, x.shape[-1])
    y = torch.empty(x.shape, dtype=x.dtype)
    total, add = x, None
    if residual is not None:
        total, add = torch.empty(x.shape, dtype=x.dtype), residual.data_ptr()
    LAYER_NORM[x.dtype](
        heads.data_ptr(),
        *heads.shape,
        *heads.stride()[:2],
        add,
        None if weight is None else weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        eps,
        y.data_ptr(),
        total.data_ptr(),
    )
    return y, total
