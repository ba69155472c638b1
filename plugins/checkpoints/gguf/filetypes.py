"""`general.file_type`: the number that states the format of most weights of a GGUF file.

Source: `enum llama_ftype` of llama.cpp (include/llama.h, 2026).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ostro.checkpoints import GGML_BY_NAME

FILE_TYPES: Mapping[str, int] = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "Q3_K_S": 11,
    "Q3_K_M": 12,
    "Q3_K_L": 13,
    "Q4_K_S": 14,
    "Q4_K_M": 15,
    "Q5_K_S": 16,
    "Q5_K_M": 17,
    "Q6_K": 18,
    "IQ4_NL": 25,
    "IQ4_XS": 30,
    "BF16": 32,
    "TQ1_0": 36,
    "TQ2_0": 37,
    "MXFP4": 38,
}
"""By the name of a format, or of a mixture."""

GUESSED = 1024
"""The file type of a format without a number: readers look at the tensors."""


def most_common(formats: Iterable[tuple[str, int]]) -> str:
    """The format of most elements; `formats` are those of matrices, with their elements."""
    counts: Counter[str] = Counter()
    for format, elements in formats:
        counts[format] += elements
    return max(counts, key=counts.__getitem__, default="F32")


def base_format(mixture: str) -> str | None:
    """The most common format of a mixture of llama.cpp (Q4_K of Q4_K_M); None for another name."""
    name = mixture.upper()
    base = name.rpartition("_")[0]
    return base if name in FILE_TYPES and base in GGML_BY_NAME else None


def file_type(most: str, name: str) -> int:
    """The file type of a file whose most common format is `most`; `name` is its quantization.

    A mixture has its own number, whatever its most common format, as in llama-quantize.
    """
    if base_format(name) is not None:
        return FILE_TYPES[name.upper()]
    return FILE_TYPES.get(most, FILE_TYPES.get(f"{most}_S", GUESSED))
