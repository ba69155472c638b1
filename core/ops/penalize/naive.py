"""Penalties in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ostro.core.ops.penalize import Penalties


def penalize(logits: Tensor, params: Penalties) -> Tensor:
    """See the package. Several amounts for one token are added in their order."""
    counts, seen = params.counts, params.seen
    masks = [mask != 0 for mask in (counts, seen) if mask is not None]
    if masks:
        rows, ids = (masks[0] | masks[-1]).nonzero(as_tuple=True)
        value, r = logits[rows, ids], params.repetition[rows]
        value = torch.where(value > 0, value / r, value * r)
        if counts is not None:
            n = counts[rows, ids]
            value = value - params.presence[rows] * (n > 0) - params.frequency[rows] * n
        logits[rows, ids] = value
    where = (params.bias_rows, params.bias_ids)
    return logits.index_put_(where, params.bias_values, accumulate=True)
