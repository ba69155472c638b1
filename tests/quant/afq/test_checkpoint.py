"""A tiny llama in MLX's format, served: its logits are those of the dequantized weights."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from ostro.quant.afq import naive


def packed(weight: Tensor, bits: int, group: int) -> tuple[dict[str, Tensor], Tensor]:
    """What MLX stores of a weight, by suffix, and what remains of it."""
    codes, scales, biases = naive.quantize(weight, bits, group)
    words = naive.pack(codes, bits)
    parts = {"weight": words, "scales": scales, "biases": biases}
    return parts, naive.dequantize(words, scales, biases, bits)


@pytest.mark.parametrize(("bits", "group"), [(4, 64), (3, 32)])
def test_it_says_what_its_weights_say(bits: int, group: int, serve: Any) -> None:
    off, explain = serve(
        lambda name, weight: packed(weight, 8 if "down_proj" in name else bits, group),
        whole=True,
        writer="mlx",
        quantization={"bits": bits, "group_size": group},
    )
    assert off <= 1e-5
    assert any("AFQ8 (8 bits" in line for line in explain)
