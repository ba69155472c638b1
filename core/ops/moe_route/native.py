"""Routing on CPU in C++."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ostro.core.errors import InvalidTensor
from ostro.core.native import ADDRESS, FLOAT, INT, Arg, Signature, function, functions, load
from ostro.core.ops.moe_route import RoutingRule, room

LIBRARY = load(Path(__file__).with_suffix(".cpp"))
ROUTE = functions(
    LIBRARY,
    "route",
    *(ADDRESS, INT, INT, INT, ADDRESS, INT, INT, INT, INT, INT, FLOAT, ADDRESS, ADDRESS),
)
SIGNATURE = Signature(
    "route",
    logits=Arg("rows experts", strided="rows"),
    bias=Arg("experts", torch.float32, optional=True),
)
SORT = function(
    LIBRARY, "sort_copies", *(ADDRESS, INT, INT, INT, ADDRESS, ADDRESS, ADDRESS), result=INT
)

SORT_SIGNATURE = Signature("sort", experts=Arg("rows top", torch.int64))


def route(logits: Tensor, rule: RoutingRule, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """See the package."""
    if bias is not None:
        bias = bias.float()
    SIGNATURE(logits, bias)
    experts, weights = room(logits, rule)
    ROUTE[logits.dtype](
        logits.data_ptr(),
        *logits.shape,
        logits.stride(0),
        None if bias is None else bias.data_ptr(),
        rule.top,
        rule.renormalise,
        rule.sigmoid,
        rule.groups,
        rule.best_groups,
        rule.factor,
        experts.data_ptr(),
        weights.data_ptr(),
    )
    return experts, weights


def sort(experts: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """See the package. Raises InvalidTensor for experts out of range, except in a graph replay."""
    experts = experts.contiguous()
    SORT_SIGNATURE(experts)
    places = experts.new_empty(experts.shape)
    copies = experts.numel()
    expert_of_copy, row_of_copy = experts.new_empty(copies), experts.new_empty(copies)
    wrong = SORT(
        experts.data_ptr(),
        *(copies, experts.shape[1], count),
        expert_of_copy.data_ptr(),
        row_of_copy.data_ptr(),
        places.data_ptr(),
    )
    if wrong:
        raise InvalidTensor(f"routes {wrong} copies of rows to experts outside of 0..{count - 1}")
    return expert_of_copy, row_of_copy, places
