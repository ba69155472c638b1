"""Operations and their kernels: how to declare them, the built-in ones, and parts of kernels."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ostro.core import native
from ostro.core.device import to_device
from ostro.core.ops import (
    Choice,
    Op,
    Target,
    act_mul,
    attention,
    causal_conv,
    delta_rule,
    grouped_matmul,
    kv_write,
    moe_route,
    rms_norm,
    rope,
    sample,
    scan,
    varlen_attention,
)
from ostro.core.ops.attention import AttentionMetadata
from ostro.core.ops.attention.tiles import target_family
from ostro.core.ops.kv_write.naive import kv_write as naive_kv_write
from ostro.core.ops.kv_write.scaled import LIMITS as SCALED_LIMITS
from ostro.core.ops.kv_write.scaled import Scaled
from ostro.core.ops.launch import launch_parameters, row_class
from ostro.core.ops.moe_route import RoutingRule
from ostro.core.ops.rms_norm.naive import rms_norm as naive_rms_norm
from ostro.core.ops.rope.naive import rope as naive_rope
from ostro.core.ops.rope.scaling import frequencies as rope_frequencies
from ostro.core.ops.rope.scaling import table as rope_table
from ostro.core.ops.rows import check_contiguous, dense_rows
from ostro.core.ops.state_layout import StateLayout
from ostro.core.ops.varlen_attention.sdpa import runs as equal_length_runs

if TYPE_CHECKING:
    from ostro.core.ops.attention.triton import locate as locate_sequence
    from ostro.core.ops.chunked_scan.triton import SHORT as SHORT_SEQUENCE
    from ostro.core.ops.chunked_scan.triton import Chunks, choose_chunks, decays, softplus
    from ostro.core.ops.chunked_scan.triton import advance as advance_chunks
    from ostro.core.ops.grouped_matmul.triton import Tile as GroupedTile

_LAZY = {
    "SHORT_SEQUENCE": ("ostro.core.ops.chunked_scan.triton", "SHORT"),
    "Chunks": ("ostro.core.ops.chunked_scan.triton", "Chunks"),
    "advance_chunks": ("ostro.core.ops.chunked_scan.triton", "advance"),
    "choose_chunks": ("ostro.core.ops.chunked_scan.triton", "choose_chunks"),
    "decays": ("ostro.core.ops.chunked_scan.triton", "decays"),
    "softplus": ("ostro.core.ops.chunked_scan.triton", "softplus"),
    "locate_sequence": ("ostro.core.ops.attention.triton", "locate"),
    "GroupedTile": ("ostro.core.ops.grouped_matmul.triton", "Tile"),
}
"""Imported on first use: these modules need torch or Triton."""

__all__ = [
    "SCALED_LIMITS",
    "SHORT_SEQUENCE",
    "AttentionMetadata",
    "Choice",
    "Chunks",
    "GroupedTile",
    "Op",
    "RoutingRule",
    "Scaled",
    "StateLayout",
    "Target",
    "act_mul",
    "advance_chunks",
    "attention",
    "causal_conv",
    "check_contiguous",
    "choose_chunks",
    "decays",
    "delta_rule",
    "dense_rows",
    "equal_length_runs",
    "grouped_matmul",
    "kv_write",
    "launch_parameters",
    "locate_sequence",
    "moe_route",
    "naive_kv_write",
    "naive_rms_norm",
    "naive_rope",
    "native",
    "rms_norm",
    "rope",
    "rope_frequencies",
    "rope_table",
    "row_class",
    "sample",
    "scan",
    "softplus",
    "target_family",
    "to_device",
    "varlen_attention",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    return getattr(import_module(module), attribute)
