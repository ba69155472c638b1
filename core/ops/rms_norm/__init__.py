"""Root-mean-square norm, with an optional residual addition before it (Zhang & Sennrich 2019).

    rms_norm(x, weight, eps, residual=None) -> (y, residual)

x [..., d] float; weight [d] float32 or x's dtype; residual like x or None. The sum x + residual is
rounded to x's dtype and returned as the new residual (x itself if residual is None); the norm is
computed in float32, multiplied by the weight in float32 and rounded once to x's dtype. Rows may be
strided views whose last dimension is contiguous (heads of a fused q/k/v).
"""

from ostro.core.native import DTYPES
from ostro.core.ops.choose import Kernel

KERNELS = (
    Kernel(
        name="triton", call=f"{__name__}.triton:rms_norm", devices=("cuda",), deterministic=True
    ),
    Kernel(
        name="native",
        call=f"{__name__}.native:rms_norm",
        devices=("cpu",),
        dtypes=DTYPES,
        deterministic=True,
    ),
    Kernel(name="naive", call=f"{__name__}.naive:rms_norm", deterministic=True),
)
