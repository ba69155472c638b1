"""A tiny llama of compressed-tensors, served: its logits are those of the dequantized weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.quant.compressed_tensors import naive

STD = 0.1
Made = tuple[dict[str, Tensor], Tensor]
Packer = Callable[[Tensor], Made]
SAID = {"quant_method": "compressed-tensors", "format": "mixed", "ignore": ["lm_head"]}


def packed(weight: Tensor) -> Made:
    """4 bits in groups of 64, with zeros, rounded to the nearest; and what remains of it."""
    groups = weight.unflatten(-1, (-1, 64))
    low, high = groups.amin(-1).clamp_max(0), groups.amax(-1).clamp_min(0)
    scale = (high - low) / 15
    zero = (-low / scale).round().clamp(0, 15).to(torch.uint8)
    codes = (groups / scale[..., None] + zero[..., None]).round().clamp(0, 15)
    codes = codes.flatten(-2).to(torch.uint8)
    found = {
        "weight_packed": naive.pack(codes, 4),
        "weight_scale": scale,
        "weight_zero_point": naive.pack(zero.t(), 4).t().contiguous(),
        "weight_shape": torch.tensor(weight.shape),
    }
    return found, naive.dequantize(codes, scale, zero)


def int8(weight: Tensor) -> Made:
    scale = weight.abs().amax(-1, keepdim=True) / 127
    q = (weight / scale).round().to(torch.int8)
    return {"weight": q, "weight_scale": scale}, q * scale


def fp8(weight: Tensor) -> Made:
    scale = weight.abs().amax() / 448
    q = (weight / scale).to(torch.float8_e4m3fn)
    found = {"weight": q, "weight_scale": scale[None], "input_scale": torch.tensor([0.5])}
    return found, q.float() * scale


def nvfp4(weight: Tensor) -> Made:
    groups, whole = weight.unflatten(-1, (-1, 16)), 448 * 6 / weight.abs().amax()
    scale = (groups.abs().amax(-1) / 6 * whole).to(torch.float8_e4m3fn)
    d, table = whole.reciprocal().reshape(1, 1), naive.table_of_fp4()
    near = groups[..., None] / (scale.float() * d)[..., None, None] - table
    codes = near.abs().argmin(-1).flatten(-2).to(torch.uint8)
    found = {
        "weight_packed": naive.pack_halves(codes),
        "weight_scale": scale,
        "weight_global_scale": whole[None],
    }
    return found, naive.dequantize(codes, scale, table=table, d=d)


@pytest.mark.parametrize(
    ("usual", "down", "formats"),
    [
        (packed, int8, ("INT4 (4 bits, groups of 64)", "INT8 (8 bits, groups of 192)")),
        (fp8, nvfp4, ("input_scale not applied", "NVFP4 (4 bits, groups of 16)")),
        (nvfp4, fp8, ("NVFP4 (4 bits, groups of 16)", "FP8 (8 bits, groups of 192)")),
    ],
    ids=["int4", "fp8", "nvfp4"],
)
def test_it_says_what_its_weights_say(
    usual: Packer, down: Packer, formats: tuple[str, str], serve: Any
) -> None:
    off, explain = serve(
        lambda name, weight: (down if "down_proj" in name else usual)(weight),
        std=STD,
        quantization_config=SAID,
    )
    assert off <= 1e-5
    for format in formats:
        assert any(format in line for line in explain), explain
