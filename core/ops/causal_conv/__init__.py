"""Short causal convolution, one filter per channel, over the rows of many sequences.

    causal_conv(x, weight, bias, state, places, act="") -> [T, c]

x [T, c] float, the rows of all sequences, one after the other; weight [c, w] and bias [c] or None
float32; state [blocks, c, w - 1] float32: the w - 1 rows before a sequence's first, which
`places` (a `StateLayout`) finds, zeros where it begins; the last w - 1 rows go into its new block.
Row t is sum over j of weight[:, j] * x[t - (w - 1) + j], plus bias, through `act` ("" or "silu");
computed in float32 and rounded once to x's dtype.
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
