"""Products with weights of every format take views whose columns are contiguous."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ostro.core.load.quantize import makers
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.formats import target_of

ROWS = 1, 5, 70
N, K = 16, 256


def columns(x: Tensor) -> Tensor:
    """The layout of a transposed tensor."""
    return x.t().contiguous().t()


def steps(x: Tensor) -> Tensor:
    """Every second element of wider rows."""
    wide = x.new_zeros(len(x), 2 * x.shape[1])
    wide[:, ::2] = x
    return wide[:, ::2]


@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
def test_layouts_of_x(exact: bool) -> None:
    plugins = PluginManager()
    plugins.load()
    torch.manual_seed(0)
    weight = torch.randn(N, K)
    for name, maker in makers(plugins).items():
        storage = maker.make(weight, torch.float32, None)
        storage.finalize(target_of(storage, exact=exact))
        for rows in ROWS:
            x = torch.randn(rows, K)
            for layout in (columns, steps):
                difference = (storage.matmul(layout(x)) - storage.matmul(x)).abs().max()
                # The products of torch have other bits for another layout on some CPUs.
                assert difference < 1e-3, (name, rows, layout.__name__)
