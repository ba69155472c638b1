"""Layer norm, with an optional residual addition before it (Ba et al. 2016).

    layer_norm(x, weight, bias, eps, residual=None) -> (y, residual)

x [..., d] float; weight and bias [d] float32 or x's dtype, or None; residual like x or None. The
sum x + residual is rounded to x's dtype and returned as the new residual (x itself if residual is
None); the norm is computed in float32 from the mean and the variance of the centred row, multiplied
by the weight and increased by the bias in float32, and rounded once to x's dtype. Rows may be
strided views whose last dimension is contiguous (heads of a fused q/k/v).
"""

from ostro.core.native import DTYPES
from ostro.core.ops.choose import Kernel

KERNELS = (
    Kernel(
        name="triton", call=f"{__name__}.triton:layer_norm", devices=("cuda",), deterministic=True
    ),
    Kernel(
        name="native",
        call=f"{__name__}.native:layer_norm",
        devices=("cpu",),
        dtypes=DTYPES,
        deterministic=True,
    ),
    Kernel(name="naive", call=f"{__name__}.naive:layer_norm", deterministic=True),
)
