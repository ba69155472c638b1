"""Write the keys and values of a step's rows to the pages of a KV cache.

    kv_write(k, v, k_cache, v_cache, slots) -> None

k [T, kv, d], v [T, kv, dv] (strided views allowed); k_cache [blocks, kv, block, d], v_cache
[blocks, kv, block, dv], any float dtype (cast on write); slots [T] int64: row t is written to block
slots[t] // block, offset slots[t] % block. Rows with a negative slot are not written (padding rows
of a captured batch).

Both caches may be `Scaled` instead, with int8 or float8_e4m3fn elements: each row is quantized with
one float32 scale per token and head for k, and another for v.
"""

from ostro.core.native import DTYPES
from ostro.core.ops.choose import Kernel

KERNELS = (
    Kernel(
        name="triton", call=f"{__name__}.triton:kv_write", devices=("cuda",), deterministic=True
    ),
    Kernel(
        name="native",
        call=f"{__name__}.native:kv_write",
        devices=("cpu",),
        dtypes=DTYPES,
        deterministic=True,
    ),
    Kernel(name="naive", call=f"{__name__}.naive:kv_write", deterministic=True),
)
