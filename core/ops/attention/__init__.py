"""Attention of a flat, ragged batch over a paged cache: prefill, decode, or both in one call.

    attention(q, k_cache, v_cache, batch, scale, window=0, softcap=0.0, sinks=None, alibi=None)
        -> [T, h, dv]

q [T, h, d]: the rows of all sequences, concatenated; h is a multiple of kv, and query head i reads
kv head i // (h // kv). k_cache [blocks, kv, block, d] and v_cache [blocks, kv, block, dv] already
contain the keys and values of this step's rows; v_cache may be a view of the first dv dimensions of
k_cache (latent attention). `batch` is an `AttentionMetadata`: the rows and cache blocks of each
sequence. Row r of sequence s has position lengths[s] - queries[s] + r and attends to positions 0
to its own; if window > 0, only to the last `window` of these (its own included). Rows of a `full`
sequence attend to later positions as well. Scores are q.k * scale, then softcap *
tanh(score / softcap) if softcap > 0, plus alibi[head] * (key position - query position) (Press et
al. 2022; alibi [h] float32). The softmax is float32; if sinks [h] are given, its denominator
includes exp(sinks[head]) (attention sinks as trained into gpt-oss). The output has q's dtype. Rows
of a sequence of length 0 (padding) are zeros.

The caches may be `Scaled`, as `kv_write` fills them: one-byte elements, int8 or float8_e4m3fn, that
are multiplied by the scale of their token and head.
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
    each sequence in the cache, including this step's rows; slots [T] int64: the slots of
    `kv_write`. `max_queries` and `max_length` bound queries and lengths; they are ints, fixed for a
    captured batch. full [B] int32: 1 for a sequence whose rows attend to all its positions (images
    with bidirectional attention, encoder outputs); None if there is no such sequence. `host` has
    starts, lengths, full and the used block ids as Python lists for kernels that loop on the host;
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
    memo: dict[str, Any] | None = None  # values that CPU kernels compute once per step


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
