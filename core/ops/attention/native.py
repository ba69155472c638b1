"""Attention on CPU in C++: decode rows read the cache pages in place, prompts run in tiles.

Prefill uses SDPA (`cpu.prefill`) on CPUs with AMX and for dtypes other than bfloat16: it is faster.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ostro.core.errors import InvalidTensor
from ostro.core.native import ADDRESS, DTYPES, FLOAT, INT, Arg, Signature, function, functions, load
from ostro.core.ops.attention import cpu
from ostro.core.ops.kv_write.scaled import Scaled, parts_of, stored_type
from ostro.core.threads import THREADS

if TYPE_CHECKING:
    from ostro.core.ops.attention import AttentionMetadata

LIBRARY = load(Path(__file__).with_suffix(".cpp"))
RULE = (FLOAT, INT, FLOAT, ADDRESS, ADDRESS)
DECODE = functions(
    LIBRARY,
    "decode",
    *(ADDRESS, INT, INT, INT, ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS, INT, ADDRESS, ADDRESS),
    *(INT, INT, INT, INT, INT, INT, INT, *RULE, INT, ADDRESS),
)
UNPACK = functions(
    LIBRARY, "unpack", *(INT, ADDRESS, ADDRESS, ADDRESS, INT, INT, INT, INT, INT, ADDRESS)
)
STORED = {torch.int8: 1, torch.float8_e4m3fn: 2}
PREFILL = function(
    LIBRARY,
    "prefill_bf16",
    *(ADDRESS, INT, INT, ADDRESS, ADDRESS, INT, INT, INT, INT, INT, INT, *RULE, ADDRESS),
)


def signature(stored: torch.dtype | None) -> Signature:
    """The signature for caches of q's dtype (None), or with scaled elements of dtype `stored`."""
    scales = Arg("blocks kv_heads block", torch.float32, optional=stored is None)
    return Signature(
        "attention",
        {
            "as many query heads for every kv head": lambda n: (
                n["kv_heads"] > 0 and n["heads"] % n["kv_heads"] == 0
            ),
            "blocks of at least one token": lambda n: n["block"] > 0,
        },
        slots=Arg("rows", torch.int64),
        lengths=Arg("sequences", torch.int32),
        starts=Arg("sequences+1", torch.int32),
        table=Arg("sequences width", torch.int32, strided="sequences"),
        k_cache=Arg("blocks kv_heads block d", stored),
        k_scales=scales,
        v_cache=Arg("blocks kv_heads block dv", stored, strided="block"),
        v_scales=scales,
        q=Arg("rows heads d", strided="rows heads"),
        sinks=Arg("heads", torch.float32, optional=True),
        alibi=Arg("heads", torch.float32, optional=True),
    )


SIGNATURES = {stored: signature(stored) for stored in (None, *STORED)}
TILED = not torch.cpu._is_amx_tile_supported()
CUT = 256  # fewest keys per split that are worth a thread


def attention(
    q: Tensor,
    k_cache: Tensor | Scaled,
    v_cache: Tensor | Scaled,
    batch: AttentionMetadata,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    alibi: Tensor | None = None,
) -> Tensor:
    """See the package. Computes in float32; the softmax weights of a prefill tile are bfloat16."""
    sinks = None if sinks is None else sinks.float()
    alibi = None if alibi is None else alibi.float()
    kept = isinstance(k_cache, Scaled) or k_cache.dtype == q.dtype
    if q.dtype in DTYPES and (not kept or q.stride(-1) != 1):
        return cpu.attention(q, k_cache, v_cache, batch, scale, window, softcap, sinks, alibi)
    check = SIGNATURES[stored_type(k_cache)]
    layout = batch.slots, batch.lengths, batch.starts, batch.table
    check(*layout, *parts_of(k_cache), *parts_of(v_cache), q, sinks, alibi)
    if (tokens := batch.table.shape[1] * k_cache.shape[2]) < batch.max_length:
        raise InvalidTensor(f"has block tables of {tokens} tokens, expected {batch.max_length}")
    rule = (scale, window, softcap, address(sinks), address(alibi))
    # `decode` writes every row of a decode batch. Otherwise padding rows must be zeros.
    blank = torch.empty if batch.max_queries == 1 else torch.zeros
    out = blank(q.shape[0], q.shape[1], v_cache.shape[-1], dtype=q.dtype)
    decode(q, k_cache, v_cache, batch, rule, out)
    if batch.max_queries > 1:
        for many in cpu.planned(batch, k_cache.shape[2], window):
            if many.rows.stop - many.rows.start == 1:
                continue
            keys = gather(k_cache, many.blocks, many.span, q.dtype)
            values = gather(v_cache, many.blocks, many.span, q.dtype)
            if TILED and q.dtype == torch.bfloat16 and not many.full:
                prefill(q[many.rows], keys, values, rule, out[many.rows])
            else:
                features = (scale, window, softcap, sinks, alibi)
                cpu.prefill(q[many.rows], keys, values, out[many.rows], *features, full=many.full)
    return out


def address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def gather(cache: Tensor | Scaled, ids: list[int], span: slice, dtype: torch.dtype) -> Tensor:
    """Positions `span` of the pages `ids` of a cache [blocks, kv, block, d] as [kv, L, d]."""
    if not isinstance(cache, Scaled):
        return cpu.gather(cache, ids, span, dtype)
    _, kv, block, d = cache.shape
    out = torch.empty(kv, span.stop - span.start, d, dtype=dtype)
    table = torch.tensor(ids, dtype=torch.int32)
    UNPACK[dtype](
        STORED[cache.dtype],
        cache.elements.data_ptr(),
        cache.scales.data_ptr(),
        table.data_ptr(),
        span.start,
        span.stop,
        kv,
        block,
        d,
        out.data_ptr(),
    )
    return out


def decode(
    q: Tensor,
    k_cache: Tensor | Scaled,
    v_cache: Tensor | Scaled,
    batch: AttentionMetadata,
    rule: tuple[float, int, float, int | None, int | None],
    out: Tensor,
) -> None:
    """Compute the rows of all sequences with one row; the rows of others are left unchanged."""
    kv, block, d = k_cache.shape[1:]
    sequences = batch.lengths.shape[0]
    # Not the number at this moment: results would depend on the load.
    threads = THREADS.limit or torch.get_num_threads()
    cuts = max(1, min(2 * threads // (sequences * kv), batch.max_length // CUT))
    (k, k_scales), (v, v_scales) = parts_of(k_cache), parts_of(v_cache)
    DECODE[q.dtype](
        q.data_ptr(),
        *q.stride()[:2],
        STORED.get(k.dtype, 0),
        k.data_ptr(),
        v.data_ptr(),
        address(k_scales),
        address(v_scales),
        batch.table.data_ptr(),
        batch.table.stride(0),
        batch.starts.data_ptr(),
        batch.lengths.data_ptr(),
        sequences,
        q.shape[1],
        kv,
        block,
        d,
        v.shape[-1],
        v.stride(2),
        *rule,
        cuts,
        out.data_ptr(),
    )


def prefill(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rule: tuple[float, int, float, int | None, int | None],
    out: Tensor,
) -> None:
    """Write to `out` the attention of the last n positions of one sequence.

    q [n, h, d] bfloat16, keys [kv, L, d], values [kv, L, dv].
    """
    keys, values = keys.contiguous(), values.contiguous()
    PREFILL(
        q.data_ptr(),
        *q.stride()[:2],
        keys.data_ptr(),
        values.data_ptr(),
        q.shape[0],
        keys.shape[1],
        q.shape[1],
        keys.shape[0],
        *(q.shape[2], values.shape[2]),
        *rule,
        out.data_ptr(),
    )
