"""MoE routing: select the experts and weights of each row, and sort the copies of rows by expert.

    route(logits, rule, bias=None) -> (experts [T, k] int64, weights [T, k] float32)

logits [T, E] float, last dimension contiguous, cast to float32 after loading; rule a `RoutingRule`;
bias [E] float32, added to the scores for the selection only (DeepSeek-V3). Experts are selected by
score + bias, or without a bias by their logits, which have the same order: best first, of equal
ones the lower index first, NaN before all numbers. The experts of a row are distinct and within
0..E - 1 for any logits.

    sort(experts, count) -> (expert_of_copy [T k] int64, row_of_copy [T k] int64, places [T, k])

experts [T, k] int64, each within 0..count - 1. Row t has k copies, one per expert. They are sorted
by expert, the input order of `grouped_matmul`, and within an expert by row. Copy i is of row
row_of_copy[i]; the copy of row t for experts[t, j] has index places[t, j] int64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ostro.core.errors import InvalidTensor
from ostro.core.native import DTYPES
from ostro.core.ops.choose import Kernel

TINY = 1e-20
"""Added to the sum of sigmoids before dividing by it (DeepseekV3TopkRouter)."""


class RoutingRule(NamedTuple):
    """How to select and weight experts.

    top: k, the number of experts per row. sigmoid: an expert's score is the sigmoid of its logit,
    else the softmax over all experts. renormalise: divide the weights of the selected experts by
    their sum; for softmax scores, that is the softmax over the selected. groups: the number of
    groups, of adjacent experts and equal size; experts outside the `best_groups` best groups are
    masked with -inf. A group's rank is its best expert, or with a bias the sum of its two best
    (DeepSeek-V2 and V3). factor: multiplies all weights at the end.
    """

    top: int
    renormalise: bool = False
    sigmoid: bool = False
    groups: int = 1
    best_groups: int = 1
    factor: float = 1.0


def check(logits: Tensor, rule: RoutingRule) -> None:
    """Raise InvalidTensor if there are too few experts for the rule, or groups of unequal size."""
    experts = logits.shape[1]
    if not 0 < rule.top <= experts or rule.groups < 1 or experts % rule.groups:
        raise InvalidTensor(
            f"routes over {experts} experts by {rule}, expected top within 1..{experts} and groups "
            "of equal size"
        )


def room(logits: Tensor, rule: RoutingRule) -> tuple[Tensor, Tensor]:
    """Allocate the outputs: experts and weights."""
    check(logits, rule)
    shape, device = (logits.shape[0], rule.top), logits.device
    experts = torch.empty(shape, dtype=torch.int64, device=device)
    return experts, torch.empty(shape, dtype=torch.float32, device=device)


def kernels(function: str, dtypes: tuple[torch.dtype, ...] | None = None) -> tuple[Kernel, ...]:
    """The kernels of an operation; all are deterministic, without atomics."""
    modules = {"triton": ("cuda",), "native": ("cpu",), "naive": ("cpu", "cuda")}
    return tuple(
        Kernel(
            name=name,
            call=f"{__name__}.{name}:{function}",
            devices=devices,
            dtypes=dtypes if name == "native" else None,
            deterministic=True,
        )
        for name, devices in modules.items()
    )


KERNELS = kernels("route", DTYPES)
SORT = kernels("sort")
