"""A tiny llama in AWQ, served: its logits are those of the dequantized weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ostro.quant.awq import naive

GROUP, TOP = 64, 15


def packed(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """A weight rounded to the nearest as AutoAWQ holds it, and what remains of it."""
    groups = weight.unflatten(-1, (-1, GROUP))
    low, high = groups.amin(-1).clamp_max(0), groups.amax(-1).clamp_min(0)
    scales = ((high - low) / TOP).half()
    zeros = (-low / scales.float()).round().clamp(0, TOP)
    codes = (groups / scales.float()[..., None] + zeros[..., None]).round().clamp(0, TOP)
    found = {
        "qweight": naive.pack(codes.flatten(-2).t().to(torch.uint8)),
        "qzeros": naive.pack(zeros.t().to(torch.uint8)),
        "scales": scales.t().contiguous(),
    }
    return found, naive.dequantize(*found.values())


def test_it_says_what_its_weights_say(serve: Any) -> None:
    said = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}
    off, explain = serve(lambda _, weight: packed(weight), quantization_config=said)
    assert off <= 1e-5
    assert any("AWQ4 (4 bits" in line for line in explain)
