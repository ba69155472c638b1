"""Products with weights in planes (`core.planes`), and the weights as floats again.

    product(x, planes) -> [t, n]
    grouped(x, planes, expert_of_row) -> [t, n]
    dequantize(planes, dtype) -> [..., k]

x [t, k] of the model's dtype, last dimension contiguous. Planes of [n, k], for `grouped` of
[experts, n, k] with expert_of_row [t] int64, ascending. Sums are float32, rounded once to x's
dtype; a row's bits depend on no other row where a kernel is deterministic. `dequantize` computes in
float32, rounded once to `dtype`.

Kernels that are marked `rounds` do as llama.cpp's do: every 32 neighbours of a row of x become
integers of eight bits and a scale first (`naive.rounded`), whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostro.core.ops.choose import Kernel


def even(facts: Mapping[str, Any]) -> bool:
    """Groups that kernels know: of 16, or of whole cells."""
    group = facts["group"]
    return bool(group == 16 or group % 32 == 0)


def kernels(verb: str) -> tuple[Kernel, ...]:
    """The ways to run one of the verbs, in order of preference."""
    here = __name__
    return (
        Kernel(
            name="naive, blocks of rows",
            call=f"{here}.naive:{verb}",
            deterministic=False,
        ),
        Kernel(name="naive, row by row", call=f"{here}.naive:{verb}_fixed", deterministic=True),
    )


PRODUCT = kernels("product")
GROUPED = kernels("grouped")
DEQUANTIZE = (Kernel(name="naive", call=f"{__name__}.naive:dequantize", deterministic=True),)
