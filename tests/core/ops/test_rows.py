"""Kernels take inputs whose last dimension is not contiguous: transposed views, as of pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.core.ops import moe_route
from ostro.core.ops.act_mul import triton as act_mul
from ostro.core.ops.grouped_matmul import triton as grouped_matmul
from ostro.core.ops.layer_norm import triton as layer_norm
from ostro.core.ops.moe_route import triton as route
from ostro.core.ops.rms_norm import triton as rms_norm
from ostro.core.ops.rope import triton as rope
from ostro.plugins.conformance.kernels import DEVICE

D = 64
WEIGHT = torch.ones(D, device=DEVICE)
EXPERTS = torch.zeros(5, dtype=torch.int64, device=DEVICE)


def rotate(x: Tensor) -> Tensor:
    heads = x[:, :32].unflatten(1, (2, 16))
    table = torch.ones(9, 16, device=DEVICE)
    positions = torch.arange(len(x), device=DEVICE)[None]
    return rope.rope(heads, heads, positions, table)[0]


def transposed(x: Tensor) -> Tensor:
    """The same values in a view whose columns are contiguous."""
    view = x.t().contiguous().t()
    assert view.stride(-1) != 1
    return view


CALLS: dict[str, Callable[[Tensor], Any]] = {
    "rms_norm": lambda x: rms_norm.rms_norm(x, WEIGHT, 1e-6)[0],
    "rms_norm of a sum": lambda x: rms_norm.rms_norm(x, WEIGHT, 1e-6, x)[0],
    "layer_norm": lambda x: layer_norm.layer_norm(x, WEIGHT, None, 1e-6)[0],
    "act_mul": lambda x: act_mul.act_mul(x, "silu"),
    "grouped_matmul": lambda x: grouped_matmul.grouped(x, x[None, :3].contiguous(), EXPERTS),
    "route": lambda x: route.route(x, moe_route.RoutingRule(top=2))[1],
    "rope": rotate,
}


@pytest.mark.parametrize("name", CALLS)
def test_columns_may_be_contiguous(name: str) -> None:
    x = torch.randn(5, D, device=DEVICE)
    torch.testing.assert_close(CALLS[name](transposed(x)), CALLS[name](x))
