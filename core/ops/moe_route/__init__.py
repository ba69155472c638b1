"""MoE routing: select the experts and weights of each row, and sort the copies of rows by expert.

    route(logits, rule, bias=None) -> (experts [T, k] int64, weights [T, k] float32)

logits [T, E] float, last dimension contiguous, up-cast right after loading; rule a `RoutingRule`;
bias [E] float32, added to scores for the choice alone (DeepSeek-V3). Experts are chosen by
score + bias where there is a bias, else by their logits, which have the same order: best first, of
equals the lower index first, NaN before all numbers. Those of a row are distinct and within
0..E - 1 whatever its logits are.

    sort(experts, count) -> (expert_of_copy [T k] int64, row_of_copy [T k] int64, places [T, k])

experts [T, k] int64, each within 0..count - 1. Row t has k copies, one per expert; sorted by expert
as `ops.grouped` wants them, those of an expert in the order of rows, copy i belongs to row
row_of_copy[i], and the copy of row t for experts[t, j] is at places[t, j] int64.
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
    """How experts are chosen and weighted.

    top: how many, k. sigmoid: an expert's score is the sigmoid of its logit, otherwise the softmax
    over all. renormalise: the weights of the chosen are divided by their sum; of softmax scores
    that is the softmax over the chosen. groups: of neighbours, equally large; experts are chosen
    from the `best_groups` best of them, all others count as -inf. Groups are ranked by their best
    expert, or by the sum of their two best where there is a bias (DeepSeek-V2 and V3). factor: what
    all weights are multiplied by at last.
    """

    top: int
    renormalise: bool = False
    sigmoid: bool = False
    groups: int = 1
    best_groups: int = 1
    factor: float = 1.0


def check(logits: Tensor, rule: RoutingRule) -> None:
    """Raise InvalidTensor unless there are as many experts as the rule needs, in whole groups."""
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
