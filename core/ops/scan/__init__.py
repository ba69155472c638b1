"""The scan of Mamba 2 over the rows of many sequences (Dao & Gu 2024, transformers' Mamba2Mixer).

    scan(x, dt, a, b, c, d, dt_bias, limit, state, places) -> [T, h, p]

x [T, h, p], dt [T, h], b and c [T, g, n] are the rows of all sequences, sequence by sequence, in
one float dtype (views of wider rows, all but the first dimension contiguous); head i uses group
i // (h // g). a, d and dt_bias [h] float32; limit: the minimum and maximum of a time step.
state [blocks, h, p, n] float32: `places` (a `StateLayout`) locates the state S before the first row
of a sequence; S is zero at the start of a sequence. The state after each row that has a block is
saved to it; the first of them may be the block before. For each row, in float32:

    step = softplus(dt + dt_bias), clamped to limit
    S = exp(step * a) * S + step * x b^T
    y = S c + d * x

y is rounded once to x's dtype; it is zero for idle sequences.
"""

from ostro.core.native import DTYPES
from ostro.core.ops.choose import Kernel

KERNELS = (
    Kernel(name="triton", call=f"{__name__}.triton:scan", devices=("cuda",)),
    Kernel(
        name="triton_deterministic",
        call=f"{__name__}.triton:scan_deterministic",
        devices=("cuda",),
        deterministic=True,
    ),
    Kernel(
        name="native",
        call=f"{__name__}.native:scan",
        devices=("cpu",),
        dtypes=DTYPES,
        deterministic=True,
    ),
    Kernel(name="naive", call=f"{__name__}.naive:scan", deterministic=True),
)
