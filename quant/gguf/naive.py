"""The ggml formats in plain torch: the byte layouts, and the truth that kernels are held to.

A row is a run of blocks; `core.load.ggml` has their sizes. Numbers are little endian. Source of the
layouts: the `block_*` structs and `dequantize_row_*` of llama.cpp (ggml-common.h, ggml-quants.c).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ostro.core.errors import Unsupported
from ostro.core.load.ggml import BY_NAME


def dequantize(format: str, data: Tensor) -> Tensor:
    """Unpack rows of `format` to float32.

    data: uint8 [..., bytes per row], as a container reads it. Returns [..., k]. Raises Unsupported
    for a format that is not in `FORMATS`, ValueError for other dtypes and for parts of blocks.
    """
    if format not in FORMATS:
        raise Unsupported(
            f"the GGUF format {format} is not supported; supported are {', '.join(FORMATS)}"
        )
    kind = BY_NAME[format]
    *rows, nbytes = data.shape
    if data.dtype != torch.uint8 or nbytes % kind.nbytes:
        raise ValueError(
            f"{format} wants uint8 rows of whole {kind.nbytes}-byte blocks, "
            f"not {data.dtype} {tuple(data.shape)}"
        )
    n_blocks = nbytes // kind.nbytes
    blocks = data.reshape(-1, kind.nbytes)
    return FORMATS[format](blocks).reshape(*rows, n_blocks * kind.block)


def _f32(blocks: Tensor) -> Tensor:
    """f32 w. [n, 4] -> [n, 1]."""
    return _as(blocks, torch.float32)


def _f16(blocks: Tensor) -> Tensor:
    """f16 w. [n, 2] -> [n, 1]."""
    return _as(blocks, torch.float16).float()


def _bf16(blocks: Tensor) -> Tensor:
    """bf16 w: the upper half of a float32. [n, 2] -> [n, 1]."""
    return _as(blocks, torch.bfloat16).float()


def _q8_0(blocks: Tensor) -> Tensor:
    """f16 d; i8 q[32]: w = d q. [n, 34] -> [n, 32]."""
    return _as(blocks[:, :2], torch.float16).float() * _as(blocks[:, 2:], torch.int8).float()


def _as(field: Tensor, dtype: torch.dtype) -> Tensor:
    """The bytes of one field of every block, as numbers. A copy: fields are not aligned."""
    return field.clone(memory_format=torch.contiguous_format).view(dtype)


FORMATS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
}
"""Blocks [n, bytes per block] uint8 -> weights [n, elements per block] float32."""
