"""The table of ggml types: ids and names of the formats in GGUF files, and their block sizes.

Source: `enum ggml_type` and the `block_*` structs of llama.cpp (ggml.h, ggml-common.h, 2026).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class GgmlType(NamedTuple):
    """A format: `block` consecutive elements of a row are stored in `nbytes` bytes."""

    id: int
    name: str
    block: int
    nbytes: int

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of `k` elements; `k` must be a multiple of `block`."""
        return k // self.block * self.nbytes


_TYPES = (
    GgmlType(0, "F32", 1, 4),
    GgmlType(1, "F16", 1, 2),
    GgmlType(2, "Q4_0", 32, 18),
    GgmlType(3, "Q4_1", 32, 20),
    GgmlType(6, "Q5_0", 32, 22),
    GgmlType(7, "Q5_1", 32, 24),
    GgmlType(8, "Q8_0", 32, 34),
    GgmlType(9, "Q8_1", 32, 36),
    GgmlType(10, "Q2_K", 256, 84),
    GgmlType(11, "Q3_K", 256, 110),
    GgmlType(12, "Q4_K", 256, 144),
    GgmlType(13, "Q5_K", 256, 176),
    GgmlType(14, "Q6_K", 256, 210),
    GgmlType(15, "Q8_K", 256, 292),
    GgmlType(16, "IQ2_XXS", 256, 66),
    GgmlType(17, "IQ2_XS", 256, 74),
    GgmlType(18, "IQ3_XXS", 256, 98),
    GgmlType(19, "IQ1_S", 256, 50),
    GgmlType(20, "IQ4_NL", 32, 18),
    GgmlType(21, "IQ3_S", 256, 110),
    GgmlType(22, "IQ2_S", 256, 82),
    GgmlType(23, "IQ4_XS", 256, 136),
    GgmlType(24, "I8", 1, 1),
    GgmlType(25, "I16", 1, 2),
    GgmlType(26, "I32", 1, 4),
    GgmlType(27, "I64", 1, 8),
    GgmlType(28, "F64", 1, 8),
    GgmlType(29, "IQ1_M", 256, 56),
    GgmlType(30, "BF16", 1, 2),
    GgmlType(34, "TQ1_0", 256, 54),
    GgmlType(35, "TQ2_0", 256, 66),
    GgmlType(39, "MXFP4", 32, 17),
    GgmlType(40, "NVFP4", 64, 36),
    GgmlType(41, "Q1_0", 128, 18),
    GgmlType(42, "Q2_0", 64, 18),
)

GGML_TYPES: Mapping[int, GgmlType] = {kind.id: kind for kind in _TYPES}
"""Types by id, as in GGUF files."""

GGML_BY_NAME: Mapping[str, GgmlType] = {kind.name: kind for kind in _TYPES}
"""Types by name, which is `TensorInfo.format`."""

GGML_WITHDRAWN: Mapping[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
"""Ids in older files that llama.cpp no longer reads."""
