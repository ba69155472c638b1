"""LoRA of a batch with different adapters per row: y += sum_j s_j B_j (A_j x) over pages j.

    lora(x, y, a, b, widths, pages, scales, mixture, expert=None, experts=1) -> y

The rank dimension of an adapter is split into pages of 16, padded with zeros, so that ranks are not
padded to the largest rank of the batch. A mixture of adapters is a longer list of pages. The pages
and scales are data on the device, so that a call can be captured in a graph.

x [t, k] and y [t, n] of the model's dtype, last dimension contiguous; y is changed in place and
returned. a [P, parts, 16, k] and b [P, 16, n] in the same dtype; `widths` are the numbers of
columns of y of each part, in order, sum(widths) = n; each part has its own A (fused projections).
pages [M, K] int32, -1 for none; scales [M, K] float32; mixture [t] int32, or [1] for all rows: the
row's index into the first axis of pages and scales. Mixture 0 has no pages. expert [t] int64, for
stacked experts: a and b then have P * experts pages, and row t uses page * experts + expert[t].

Products and sums are float32, rounded once to y's dtype. In a deterministic kernel, a row's bits
depend on no other row. Rows without pages are unchanged.
"""

from ostro.core.native import DTYPES
from ostro.core.ops.choose import Kernel

KERNELS = (
    Kernel(
        name="triton",
        call=f"{__name__}.triton:lora",
        devices=("cuda",),
        dtypes=DTYPES,
        deterministic=True,
    ),
    Kernel(
        name="native",
        call=f"{__name__}.native:lora",
        devices=("cpu",),
        dtypes=DTYPES,
        deterministic=True,
    ),
    Kernel(name="naive", call=f"{__name__}.naive:lora", deterministic=True),
)
