"""Routing on CPU."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from ostro.core.native import ADDRESS, FLOAT, INT, function, functions, load
from ostro.core.ops.moe_route import RoutingRule, room

LIBRARY = load(Path(__file__).with_suffix(".cpp"))
ROUTE = functions(
    LIBRARY,
    "route",
    *(ADDRESS, INT, INT, INT, ADDRESS, INT, INT, INT, INT, INT, FLOAT, ADDRESS, ADDRESS),
)
SORT = function(LIBRARY, "sort_copies", *(ADDRESS, INT, INT, INT, ADDRESS, ADDRESS, ADDRESS))


def route(logits: Tensor, rule: RoutingRule, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """See the package."""
    experts, weights = room(logits, rule)
    if bias is not None:
        bias = bias.float()
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
    """See the package."""
    experts = experts.contiguous()
    places = experts.new_empty(experts.shape)
    copies = experts.numel()
    expert_of_copy, row_of_copy = experts.new_empty(copies), experts.new_empty(copies)
    SORT(
        experts.data_ptr(),
        *(copies, experts.shape[1], count),
        expert_of_copy.data_ptr(),
        row_of_copy.data_ptr(),
        places.data_ptr(),
    )
    return expert_of_copy, row_of_copy, places
