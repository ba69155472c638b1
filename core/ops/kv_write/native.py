"""Writing into pages on CPU."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from ostro.core.native import ADDRESS, INT, functions, load
from ostro.core.ops.kv_write import naive

KINDS = (ADDRESS, INT, INT, INT, INT, INT, ADDRESS, INT, ADDRESS)
WRITE_ROWS = functions(load(Path(__file__).with_suffix(".cpp")), "write_rows", *KINDS)


def kv_write(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """See the package."""
    if k.dtype != k_cache.dtype:
        return naive.kv_write(k, v, k_cache, v_cache, slots)
    for x, cache in ((k, k_cache), (v, v_cache)):
        WRITE_ROWS[x.dtype](
            x.data_ptr(),
            *x.shape,
            *x.stride()[:2],
            slots.data_ptr(),
            cache.shape[2],
            cache.data_ptr(),
        )
    return None
