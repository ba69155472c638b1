"""A tiny llama in FP8, served: its logits are those of the dequantized weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.quant.fp8 import naive


def packed(weight: Tensor, blocks: bool) -> tuple[dict[str, Tensor], Tensor]:
    """A weight's tensors by suffix, and what remains of it."""
    if not blocks:
        q, scale = naive.quantize(weight)
        parts = {"weight": q, "weight_scale": scale.view(1), "input_scale": torch.ones(1)}
        return parts, naive.dequantize(q, scale.expand(len(q), 1))
    n, k = weight.shape
    scale = torch.linspace(0.01, 0.02, -(-n // 128) * -(-k // 128)).view(-(-n // 128), -1)
    spread = scale.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    q = (weight / spread).to(torch.float8_e4m3fn)
    return {"weight": q, "weight_scale_inv": scale}, q.float() * spread


@pytest.mark.parametrize("blocks", [False, True], ids=["tensors", "blocks"])
def test_it_says_what_its_weights_say(blocks: bool, serve: Any) -> None:
    said = {"quant_method": "fp8"} | ({"weight_block_size": [128, 128]} if blocks else {})
    off, explain = serve(lambda _, weight: packed(weight, blocks), quantization_config=said)
    assert off <= 1e-5
    assert any("F8_E4M3 (8 bits" in line for line in explain)
