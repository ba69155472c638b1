"""Exclude tokens from the logits of some rows.

    mask(logits, rows, bits) -> logits (in place)

logits [B, V] float32; rows [n] int64, distinct; bits [n, ceil(V / 32)] int32: token i may be drawn
in row rows[k] if bit i % 32 of bits[k, i // 32] is set, else its logit becomes -inf.
"""

from ostro.core.ops.choose import Kernel

KERNELS = (
    Kernel(name="triton", call=f"{__name__}.triton:mask", devices=("cuda",), deterministic=True),
    Kernel(name="cpu", call=f"{__name__}.cpu:mask", devices=("cpu",), deterministic=True),
    Kernel(name="naive", call=f"{__name__}.naive:mask", deterministic=True),
)
