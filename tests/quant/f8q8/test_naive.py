"""F8Q8 in plain torch, against the definition written out number by number."""

from __future__ import annotations

import struct

import pytest
import torch
from torch import Tensor

from ostro.quant.f8q8 import naive


def number(code: int) -> float:
    """What a byte means as a float of one sign, four bits of exponent and three of mantissa."""
    exponent, mantissa = code >> 3 & 15, code & 7
    size = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
    return -size if code & 128 else size


@pytest.mark.parametrize("code", [0, 1, 7, 8, 56, 126, 128, 129, 200, 254])
def test_a_block_is_what_its_bytes_say(code: int) -> None:
    q = [-128, -1, 0, 127, *range(28)]
    block = struct.pack("B32b", code, *q)
    ours = naive.dequantize(torch.tensor(list(block), dtype=torch.uint8))
    scale = torch.tensor(number(code)) / 416
    assert ours.dtype == torch.float32 and ours.equal(torch.tensor(q).float() * scale)


def test_every_block_round_trips() -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (256, 33), generator=generator).to(torch.uint8)
    blocks[:, 0] = torch.arange(256)
    blocks = blocks[blocks[:, 0] & 127 != 127]  # those are no numbers
    assert naive.join(*naive.split(blocks)).equal(blocks)


@pytest.mark.parametrize("size", [1e-6, 1e-3, 0.02, 1.0, 20.0])
def test_weights_come_back_within_a_step(size: float) -> None:
    weight = size * torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    q, scale = naive.quantize(weight)
    again = q.float() * scale[..., None]
    step = weight.abs().amax(-1, keepdim=True) / 127
    floor = 2.0**-9 / 416  # the least scale that there is
    assert ((again - weight).abs() <= torch.maximum(10 * step, torch.tensor(floor))).all()
    if size >= 0.02:
        assert (again - weight).square().mean().sqrt() <= 0.5 * step.mean()


def test_the_better_of_two_scales_is_taken() -> None:
    weight = torch.randn(256, 32, generator=torch.Generator().manual_seed(1))

    def error(q: Tensor, scale: Tensor) -> Tensor:
        return (weight - q.float() * scale[..., None]).square().sum(-1)

    nearest = (weight.abs().amax(-1) / 127 * 416).to(torch.float8_e4m3fn).float() / 416
    q = (weight / nearest[..., None]).round().clamp(-127, 127)
    ours = error(*naive.quantize(weight))
    assert (ours <= error(q, nearest) + 1e-6).all() and ours.sum() < error(q, nearest).sum()


def test_zeros_stay_zeros_and_what_is_too_large_is_cut() -> None:
    q, scale = naive.quantize(torch.zeros(2, 32))
    assert q.eq(0).all() and scale.eq(0).all()
    q, scale = naive.quantize(torch.full((1, 32), 1000.0))
    assert q.eq(127).all() and scale.eq(448 / 416).all()
