"""Short causal depthwise convolution (one filter per channel) over the rows of many sequences.

    causal_conv(x, weight, bias, state, places, act="") -> [T, c]

x [T, c] float, the rows of all sequences, concatenated; weight [c, w], bias [c] or None, float32;
state [blocks, c, w - 1] float32: the w - 1 rows before the first row of a sequence, zeros for a new
one. `places` (a `StateLayout`) has its blocks; the w - 1 rows up to each row that has a block are
saved to it. Row t is act(sum over j of weight[:, j] * x[t - (w - 1) + j] + bias), with act ""
(none) or "silu", computed in float32 and rounded once to x's dtype; it is zero in idle sequences.
"""

from ostro.core.native import DTYPES
from ostro.core.ops.choose import Kernel

KERNELS = (
    Kernel(
        name="triton", call=f"{__name__}.triton:causal_conv", devices=("cuda",), deterministic=True
    ),
    Kernel(
        name="native",
        call=f"{__name__}.native:causal_conv",
        devices=("cpu",),
        dtypes=DTYPES,
        deterministic=True,
    ),
    Kernel(name="naive", call=f"{__name__}.naive:causal_conv", deterministic=True),
)
