"""Write to KV cache pages on CPU in C++."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ostro.core.native import ADDRESS, INT, Arg, Signature, functions, load
from ostro.core.ops.kv_write import naive
from ostro.core.ops.kv_write.scaled import SCALED_LIMITS, Scaled, parts_of, stored_type

LIBRARY = load(Path(__file__).with_suffix(".cpp"))
ROWS = (ADDRESS, INT, INT, INT, INT, INT, ADDRESS, INT)
WRITE_ROWS = functions(LIBRARY, "write_rows", *ROWS, ADDRESS)
WRITE_SCALED = functions(LIBRARY, "write_scaled", *ROWS, INT, ADDRESS, ADDRESS)


def signature(stored: torch.dtype | None) -> Signature:
    """The signature for caches of k's dtype (None), or with scaled elements of dtype `stored`."""
    scales = Arg("blocks kv_heads block", torch.float32, optional=stored is None)
    return Signature(
        "kv_write",
        {"blocks of at least one token": lambda n: n["block"] > 0},
        slots=Arg("rows", torch.int64),
        k_cache=Arg("blocks kv_heads block d", stored),
        k_scales=scales,
        v_cache=Arg("blocks kv_heads block dv", stored),
        v_scales=scales,
        k=Arg("rows kv_heads d", strided="rows kv_heads"),
        v=Arg("rows kv_heads dv", strided="rows kv_heads"),
    )


SIGNATURES = {stored: signature(stored) for stored in (None, *SCALED_LIMITS)}


def kv_write(
    k: Tensor, v: Tensor, k_cache: Tensor | Scaled, v_cache: Tensor | Scaled, slots: Tensor
) -> None:
    """See the package."""
    if k.dtype != k_cache.dtype and not isinstance(k_cache, Scaled):
        return naive.kv_write(k, v, k_cache, v_cache, slots)
    check = SIGNATURES[stored_type(k_cache)]
    check(slots, *parts_of(k_cache), *parts_of(v_cache), k, v)
    for x, cache in ((k, k_cache), (v, v_cache)):
        rows = x.data_ptr(), *x.shape, *x.stride()[:2], slots.data_ptr(), cache.shape[2]
        if isinstance(cache, Scaled):
            float8 = int(cache.dtype == torch.float8_e4m3fn)
            places = cache.elements.data_ptr(), cache.scales.data_ptr()
            WRITE_SCALED[x.dtype](*rows, float8, *places)
        else:
            WRITE_ROWS[x.dtype](*rows, cache.data_ptr())
    return None
