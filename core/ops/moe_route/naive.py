"""Routing in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ostro.core.ops.moe_route import TINY, RoutingRule, check


def route(logits: Tensor, rule: RoutingRule, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """See the package."""
    check(logits, rule)
    x = logits.float()
    scores = x.sigmoid() if rule.sigmoid else x.softmax(-1)
    keys = x if bias is None else scores + bias.float()
    if rule.best_groups < rule.groups:
        ranked_by = 1 if bias is None else min(2, x.shape[1] // rule.groups)
        keys = keys.masked_fill(~inside(keys, rule, ranked_by), -torch.inf)
    experts = best(keys, rule.top)
    weights = scores.gather(-1, experts)
    if rule.renormalise and rule.sigmoid:
        weights = weights / (weights.sum(-1, keepdim=True) + TINY)
    elif rule.renormalise:
        weights = x.gather(-1, experts).softmax(-1)
    return experts, weights * rule.factor


def inside(keys: Tensor, rule: RoutingRule, ranked_by: int) -> Tensor:
    """The mask [T, E] bool of experts in the groups with the largest sums of `ranked_by` keys."""
    grouped = keys.unflatten(-1, (rule.groups, -1))
    ranks = grouped.topk(ranked_by, -1).values.sum(-1)
    kept = torch.zeros_like(ranks, dtype=torch.bool)
    kept.scatter_(-1, best(ranks, rule.best_groups), True)
    return kept[..., None].expand_as(grouped).flatten(1)


def best(keys: Tensor, top: int) -> Tensor:
    """The indices [T, top] of the largest keys [T, n]; of equal ones the lowest first."""
    return keys.sort(stable=True, descending=True).indices[:, :top]


def sort(experts: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """See the package."""
    expert_of_copy, order = experts.flatten().sort(stable=True)
    return expert_of_copy, order // experts.shape[1], order.argsort().view(experts.shape)
