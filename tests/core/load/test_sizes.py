"""Memory sizes of weights, computed before the weights are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import torch
from torch import Tensor

from ostro.core.load.describe import outline
from ostro.core.load.sizes import FEW_ROWS, ROWS, Sizes
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.conformance.formats import wide


class Blocks:
    """Float weights in blocks of 128 rows, and as they are where a block would be mostly empty."""

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        self.rows, self.has_kernel = weight.shape[0], True

    def finalize(self, target: object, *, embedding: bool = False) -> str:
        return ""

    @property
    def nbytes(self) -> int:
        return self.rows if self.rows % 128 == 0 or self.rows == ROWS else 2 * self.rows


@pytest.fixture
def sizes() -> Iterator[Sizes]:
    plugins, settings = PluginManager(), Settings(device="cpu", dtype="float32")
    plugins.load()
    with wide(plugins, plugins.get("architectures", "llama")) as made:
        found = outline(made.folder, settings, plugins)
        with closing(found.container):
            sizes = Sizes(found, settings, plugins)
            sizes.dense = Blocks
            yield sizes


@pytest.mark.parametrize(
    ("rows", "nbytes"),
    [(128, 128), (100, 200), (FEW_ROWS, FEW_ROWS), (FEW_ROWS + 128, FEW_ROWS + 128)],
)
def test_a_layout_may_not_fit_few_rows(sizes: Sizes, rows: int, nbytes: int) -> None:
    assert sizes.rows_nbytes(None, (64, False, "F32"), rows) == nbytes
