"""Codes move between the runs of a field and the cells of a plane, bit for bit."""

from __future__ import annotations

import pytest
import torch

from ostro.quant.gguf.cells import cells, runs
from ostro.quant.gguf.fields import codes
from ostro.quant.planes.planes import pack_codes

FIELDS = [(8, 32), (4, 16), (4, 32), (4, 64), (2, 8), (2, 32), (1, 4), (1, 32), (1, 1)]
"""Bits and runs of the fields of ggml blocks."""


@pytest.mark.parametrize(("bits", "run"), FIELDS)
def test_cells_hold_the_codes_of_a_field(bits: int, run: int) -> None:
    blocks = torch.randint(0, 256, (3, 5, 7 + 32 * bits), dtype=torch.uint8)
    field = blocks[..., 7:]  # not aligned, as in a block
    plane = cells(field, bits, run)
    (expected,) = pack_codes(codes(field, bits, run), bits)
    assert plane.is_contiguous() and torch.equal(plane, expected)
    assert torch.equal(runs(plane, run), field)
