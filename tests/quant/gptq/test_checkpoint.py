"""A tiny llama in GPTQ, served: its logits are those of the dequantized weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.quant.gptq import naive

GROUP = 64
STD = 0.1
"""The spread of weights, at which sums in another order, of columns that were moved, stay near."""


def packed(weight: Tensor, bits: int, act: bool) -> tuple[dict[str, Tensor], Tensor]:
    """A weight rounded to the nearest as a "gptq" file holds it, and what remains of it. Groups are
    of neighbours, or with `act` of the columns whose weights are large, as act-order has it.
    """
    k, top = weight.shape[1], 2**bits - 1
    groups = torch.arange(k, dtype=torch.int32) // GROUP
    if act:
        groups = groups[weight.abs().sum(0).argsort().argsort()]
    order = groups.argsort(stable=True)
    parts = weight[:, order].unflatten(-1, (-1, GROUP))
    low, high = parts.amin(-1).clamp_max(0), parts.amax(-1).clamp_min(0)
    scales = ((high - low) / top).half()
    zeros = (-low / scales.float()).round().clamp(0, top)
    group = groups.long()
    codes = (weight / scales.float()[:, group] + zeros[:, group]).round().clamp(0, top)
    found = {
        "qweight": naive.pack(codes.to(torch.uint8), bits).t().contiguous(),
        "qzeros": naive.pack_zeros(zeros.t().to(torch.uint8), bits, zeros_minus_one=True),
        "scales": scales.t().contiguous(),
        "g_idx": groups,
    }
    return found, (codes - zeros[:, group]) * scales.float()[:, group]


@pytest.mark.parametrize(("bits", "act"), [(4, False), (4, True), (3, False)])
def test_it_says_what_its_weights_say(bits: int, act: bool, serve: Any) -> None:
    said = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": act}
    said["dynamic"] = {"+:.*down_proj.*": {"bits": 8}}
    off, explain = serve(
        lambda name, weight: packed(weight, 8 if "down_proj" in name else bits, act),
        std=STD,
        quantization_config=said,
    )
    assert off <= 1e-5
    for found in (f"GPTQ{bits} ({bits} bits", "GPTQ8 (8 bits"):
        assert any(found in line for line in explain)
