"""Rotary position embedding (Su et al. 2021): rotate pairs of each head by its position's angle.

    rope(q, k, positions, table, interleaved=False, sections=None) -> (q, k)

q [T, h, d], k [T, kv, d] (strided views allowed, last dimension contiguous); positions [c, T] int64
(c = 1, or 3 for multimodal rope); table [L, r] float32: row p holds r/2 cosines, then r/2 sines,
already scaled by the rule's attention factor; r <= d, and the dimensions past r pass unchanged.
Pairs are (i, i + r/2), or (2i, 2i + 1) where `interleaved`. With `sections` (c numbers summing to
r/2), frequency j takes its position from the row of `positions` that its section names. New tensors
are returned in the inputs' dtype; the rotation is computed in float32.
"""

from ostro.core.native import DTYPES
from ostro.core.ops.choose import Kernel

KERNELS = (
    Kernel(name="triton", call=f"{__name__}.triton:rope", devices=("cuda",), deterministic=True),
    Kernel(
        name="native",
        call=f"{__name__}.native:rope",
        devices=("cpu",),
        dtypes=DTYPES,
        deterministic=True,
    ),
    Kernel(name="naive", call=f"{__name__}.naive:rope", deterministic=True),
)
