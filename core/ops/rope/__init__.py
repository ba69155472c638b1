"""Rotary position embedding (Su et al. 2021): rotate pairs of each head by its position's angle.

    rope(q, k, positions, table, interleaved=False, sections=None) -> (q, k)

q [T, h, d], k [T, kv, d] (strided views allowed, last dimension contiguous); positions [c, T] int64
(c = 1, or 3 for multimodal rope); table [L, r] float32: row p is r/2 cosines, then r/2 sines,
already multiplied by the attention factor of the scaling rule; r <= d, and dimensions from r on are
copied. Pairs are (i, i + r/2), or (2i, 2i + 1) if `interleaved`. `sections` are c numbers with sum
r/2: the frequencies of section i use row i of `positions`. New tensors are returned in the inputs'
dtype; the rotation is computed in float32.
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
