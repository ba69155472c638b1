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
from ostro.core.ops.kv_write.scaled import SCALED_LIMITS, Scaled
from ostro.core.ops.launch import launch_parameters, row_class
from ostro.core.ops.moe_route import RoutingRule
from ostro.core.ops.rms_norm.naive import rms_norm as naive_rms_norm
from ostro.core.ops.rope.naive import rope as naive_rope
from ostro.core.ops.rope.scaling import rope_frequencies, rope_table
from ostro.core.ops.rows import check_contiguous, dense_rows
from ostro.core.ops.state_layout import StateLayout
from ostro.core.ops.varlen_attention.sdpa import equal_length_runs

if TYPE_CHECKING:
    from ostro.core.ops.attention.triton import locate_sequence
    from ostro.core.ops.chunked_scan.triton import (
        SHORT_SEQUENCE,
        Chunks,
        advance_chunks,
        choose_chunks,
        decays,
        softplus,
    )
    from ostro.core.ops.grouped_matmul.triton import GroupedTile

_LAZY = {
    "SHORT_SEQUENCE": "ostro.core.ops.chunked_scan.triton",
    "Chunks": "ostro.core.ops.chunked_scan.triton",
    "advance_chunks": "ostro.core.ops.chunked_scan.triton",
    "choose_chunks": "ostro.core.ops.chunked_scan.triton",
    "decays": "ostro.core.ops.chunked_scan.triton",
    "softplus": "ostro.core.ops.chunked_scan.triton",
    "locate_sequence": "ostro.core.ops.attention.triton",
    "GroupedTile": "ostro.core.ops.grouped_matmul.triton",
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
    return getattr(import_module(_LAZY[name]), name)
