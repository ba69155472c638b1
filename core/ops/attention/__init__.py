"""Attention of a flat, ragged batch over a paged cache: prefill, decode, or both in one call.

    attention(q, k_cache, v_cache, batch, scale, window=0, softcap=0.0, sinks=None, alibi=None)
        -> [T, h, dv]

q [T, h, d]: the rows of all sequences, one after the other; h is a multiple of kv, and query head i
reads kv head i // (h // kv). k_cache [blocks, kv, block, d], v_cache [blocks, kv, block, dv] hold
the keys and values, the step's own rows written already; v_cache may be a view of the first dv
dimensions of k_cache (latent attention). `batch` is an `AttentionMetadata`: which rows belong to
which sequence and where each sequence's blocks lie. Row r of sequence s sits at lengths[s] -
queries[s] + r and sees positions 0..itself, and of these only the last `window` (itself included)
where window > 0; the rows of a sequence that is `full` see the positions behind them as well.
Scores are q.k * scale, squashed to softcap * tanh(score / softcap) where softcap > 0, plus
alibi[head] * (key position - query position) (Press et al. 2022; alibi [h] float32), then a softmax
in float32 whose denominator also counts exp(sinks[head]) where sinks [h] is given (attention sinks
as trained into gpt-oss). Output in q's dtype. Rows of a sequence of length 0 (padding) give zeros.

The caches may be `Scaled` instead, as `kv_write` fills them: elements of one byte, int8 or
float8_e4m3fn, which stand for themselves times the scale of their token and head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ostro.core.native import DTYPES
from ostro.core.ops.choose import Kernel


@dataclass(slots=True)
class AttentionMetadata:
    """The layout of a batch over one group of cache blocks, on the device and (as lists) on the
    host.

    table [B, n] int32: block ids of each sequence in order (entries past its length are arbitrary
    but valid ids); starts [B + 1] int32: first row of each sequence; lengths [B] int32: tokens of
    each sequence in the cache, this step's rows included; slots [T] int64 as `kv_write` takes them.
    `max_queries` and `max_length` bound queries and lengths and are plain ints (fixed for a
    captured batch). full [B] int32: 1 where rows see all of the sequence's positions, images whose
    rows look at each other or what an encoder made; None where no sequence is. `host` repeats
    starts, lengths, full and the block ids used as Python lists for kernels that loop on the host;
    None while a graph is captured.
    """

    table: Tensor
    starts: Tensor
    lengths: Tensor
    slots: Tensor
    max_queries: int
    max_length: int
    full: Tensor | None = None
    host: HostMetadata | None = None


@dataclass(slots=True)
class HostMetadata:
    """starts [B + 1], lengths [B], blocks [B][...] and full [B] (or empty) as Python lists."""

    starts: list[int]
    lengths: list[int]
    blocks: list[list[int]]
    full: list[bool] = field(default_factory=list)
    memo: dict[str, Any] | None = None  # what a CPU kernel derives once per step, not per layer


KERNELS = (
    Kernel(name="triton", call=f"{__name__}.triton:attention", devices=("cuda",)),
    Kernel(
        name="triton_deterministic",
        call=f"{__name__}.triton:attention_deterministic",
        devices=("cuda",),
        deterministic=True,
    ),
    Kernel(name="native", call=f"{__name__}.native:attention", devices=("cpu",), dtypes=DTYPES),
    Kernel(name="cpu", call=f"{__name__}.cpu:attention", devices=("cpu",)),
    Kernel(name="rowwise", call=f"{__name__}.rowwise:attention", deterministic=True),
    Kernel(name="naive", call=f"{__name__}.naive:attention"),
)
