"""FP8 in plain torch against transformers' own dequantization, and its blocks at ragged edges."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from ostro.quant.fp8 import naive

N, K = 256, 384


def numbers(n: int, k: int, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Random codes but for those that are no numbers."""
    codes = torch.randint(0, 256, (n, k), generator=torch.Generator().manual_seed(n + k))
    q = codes.to(torch.uint8).view(dtype)
    return torch.where(q.float().isfinite(), q.view(torch.uint8), 0).view(dtype)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("shape", [(), (1,), (N, 1), (2, 3), (1, 3), (N, 12)], ids=str)
def test_scales_spread_as_in_transformers(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    q, scale = numbers(N, K, dtype), torch.rand(shape, generator=torch.Generator().manual_seed(0))
    found = naive.blocks(scale, N, K, None)
    assert found is not None
    ours = naive.dequantize(q, found.expand(N, K))
    theirs = Fp8Dequantize(None)._dequantize_one(
        q, scale.reshape(shape if len(shape) > 1 else (1, 1))
    )
    assert ours.equal(theirs)


def test_the_last_blocks_may_be_cut_short() -> None:
    scale = torch.arange(1.0, 7).view(3, 2)
    found = naive.blocks(scale, 300, 160, (128, 128))
    assert found is not None
    expanded = found.expand(300, 160)
    assert expanded.shape == (300, 5)
    assert expanded[:128].equal(torch.tensor([1.0, 1, 1, 1, 2]).expand(128, 5))
    assert expanded[299].equal(torch.tensor([5.0, 5, 5, 5, 6]))


@pytest.mark.parametrize("shape", [(2,), (300, 2), (3, 3), (2, 2), (0, 2), (3, 2, 1)], ids=str)
def test_scales_of_other_shapes_do_not_fit(shape: tuple[int, ...]) -> None:
    assert naive.blocks(torch.zeros(shape), 300, 160, (128, 128)) is None


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_every_code_has_its_number(dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    numbers, table = codes.view(dtype).float(), naive.table(dtype)
    good = numbers.isfinite()
    assert table[good].equal(numbers[good]) and table[~good].eq(0).all()
    for code in range(256):
        assert naive.is_finite(codes[code : code + 1].view(dtype)) == bool(good[code])


def test_the_largest_weight_becomes_the_largest_number() -> None:
    weight = torch.randn(3, 8, 64, generator=torch.Generator().manual_seed(0))
    weight[1] = 0
    q, scale = naive.quantize(weight)
    again = q.float() * scale
    assert q.float().abs().amax((-2, -1)).tolist() == [naive.MAX, 0, naive.MAX]
    assert again[1].eq(0).all() and scale.shape == (3, 1, 1)
    assert ((again - weight).abs() <= weight.abs() / 16 + scale / 512).all()
