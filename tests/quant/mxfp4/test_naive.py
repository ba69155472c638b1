"""The plain unpacking of MXFP4 equals transformers' and gguf's, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from ostro.quant.mxfp4 import naive


def random_bytes(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 10, 5)])
def test_the_hubs_blocks(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    blocks, scales = random_bytes(*shape, 16), random_bytes(*shape)
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=dtype).transpose(1, 2)
    ours = naive.dequantize(naive.from_hub(blocks), scales, dtype)
    assert ours.dtype == dtype
    assert torch.equal(ours.view(torch.uint8), theirs.contiguous().view(torch.uint8))


def test_every_code_at_every_exponent() -> None:
    codes = torch.arange(16, dtype=torch.uint8).repeat(2)
    q = (codes[:16] | codes[16:] << 4).expand(1, 256, 16)
    e = torch.arange(256, dtype=torch.uint8)[None]
    found = naive.dequantize(q, e, torch.float64).view(256, 2, 16)
    values = torch.tensor(naive.VALUES, dtype=torch.float64)
    truth = values * 2.0 ** (torch.arange(256, dtype=torch.float64) - 127)[:, None]
    truth[truth.abs() > torch.finfo(torch.float32).max] *= torch.inf
    for half in found.unbind(1):
        assert torch.equal(half, truth) and torch.equal(half.signbit(), truth.signbit())


def test_the_blocks_of_a_gguf_file() -> None:
    weight = np.random.default_rng(0).normal(size=(6, 96)).astype(np.float32)
    packed = gguf.quantize(weight, GGMLQuantizationType.MXFP4)
    theirs = torch.from_numpy(gguf.dequantize(packed, GGMLQuantizationType.MXFP4))
    blocks = torch.from_numpy(packed).unflatten(-1, (-1, 17))
    assert torch.equal(naive.dequantize(blocks[..., 1:], blocks[..., 0], torch.float32), theirs)
    assert (theirs - torch.from_numpy(weight)).abs().max() < 1.0


def test_the_hub_s_order_round_trips() -> None:
    blocks = random_bytes(7, 3, 16)
    assert torch.equal(naive.to_hub(naive.from_hub(blocks)), blocks)
    assert not torch.equal(naive.from_hub(blocks), blocks)
